/*
 * MPI-IO: independent and collective, contiguous and strided, shared positions, atomic mode, one file or many. What one
 * process has written is compared by another one.
 *
 * mpiio DIRECTORY [HINT=VALUE]...
 */
#include "check.h"

enum { RECORD = 47008, RECORDS = 24, BLOCK = 1 << 20, OVERLAP = 300000 };

static MPI_Info hints = MPI_INFO_NULL;
static char directory[4096];

static unsigned char pattern(int writer, long at, int step)
{
	return (unsigned char)(writer * 37 + at * 11 + at / 509 + step * 5 + 1);
}

static void fill(unsigned char *data, long bytes, int writer, long from, int step)
{
	for (long at = 0; at < bytes; at++)
		data[at] = pattern(writer, from + at, step);
}

static void compare(const unsigned char *data, long bytes, int writer, long from, int step)
{
	for (long at = 0; at < bytes; at++)
		if (data[at] != pattern(writer, from + at, step)) {
			fprintf(stderr, "rank %d, step %d: byte %ld of rank %d is %d and not %d\n", rank, step, from + at,
				writer, data[at], pattern(writer, from + at, step));
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
}

static MPI_File open_file(MPI_Comm of, const char *name, int mode)
{
	char path[5000];
	MPI_File file;
	snprintf(path, sizeof path, "%s/%s", directory, name);
	MPI(MPI_File_open(of, path, mode, hints, &file));
	MPI(MPI_File_set_errhandler(file, MPI_ERRORS_RETURN));
	return file;
}

/* MPI's rule for another process to see what was written: sync, barrier, sync. */
static void show(MPI_File file)
{
	MPI(MPI_File_sync(file));
	MPI(MPI_Barrier(MPI_COMM_WORLD));
	MPI(MPI_File_sync(file));
}

static void whole(MPI_Status *status, int bytes)
{
	int count;
	MPI(MPI_Get_count(status, MPI_BYTE, &count));
	CHECK(count == bytes);
}

static void has_size(MPI_File file, MPI_Offset expected)
{
	MPI_Offset size;
	MPI(MPI_File_get_size(file, &size));
	if (size != expected) {
		fprintf(stderr, "rank %d: the file has %lld bytes and not %lld\n", rank, (long long)size, (long long)expected);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

static void close_and_delete(MPI_File file, const char *name)
{
	char path[5000];
	MPI(MPI_File_close(&file));
	MPI(MPI_Barrier(MPI_COMM_WORLD));
	snprintf(path, sizeof path, "%s/%s", directory, name);
	if (rank == 0)
		MPI(MPI_File_delete(path, MPI_INFO_NULL));
	MPI(MPI_Barrier(MPI_COMM_WORLD));
}

/* A block for each process, read by the next one. */
static void contiguous(int collective, int step)
{
	unsigned char *data = malloc(BLOCK);
	MPI_Status status;
	MPI_File file = open_file(MPI_COMM_WORLD, "contiguous", MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR);
	int next = (rank + 1) % ranks;
	fill(data, BLOCK, rank, 0, step);
	if (collective)
		MPI(MPI_File_write_at_all(file, (MPI_Offset)rank * BLOCK, data, BLOCK, MPI_BYTE, &status));
	else
		MPI(MPI_File_write_at(file, (MPI_Offset)rank * BLOCK, data, BLOCK, MPI_BYTE, &status));
	whole(&status, BLOCK);
	show(file);
	memset(data, 0, BLOCK);
	if (collective)
		MPI(MPI_File_read_at_all(file, (MPI_Offset)next * BLOCK, data, BLOCK, MPI_BYTE, &status));
	else
		MPI(MPI_File_read_at(file, (MPI_Offset)next * BLOCK, data, BLOCK, MPI_BYTE, &status));
	whole(&status, BLOCK);
	compare(data, BLOCK, next, 0, step);
	has_size(file, (MPI_Offset)ranks * BLOCK);
	/* Open MPI changes the size without waiting for all processes. */
	MPI(MPI_Barrier(MPI_COMM_WORLD));
	MPI(MPI_File_set_size(file, 5));
	has_size(file, 5);
	MPI(MPI_Barrier(MPI_COMM_WORLD));
#ifdef OPEN_MPI
	/* Its processes ask for the size while process 0 writes, and one that finds it larger leaves the others behind. */
	if (rank == 0) {
		MPI_File own = open_file(MPI_COMM_SELF, "contiguous", MPI_MODE_RDWR);
		MPI(MPI_File_preallocate(own, BLOCK));
		MPI(MPI_File_close(&own));
	}
	MPI(MPI_Barrier(MPI_COMM_WORLD));
#else
	MPI(MPI_File_preallocate(file, BLOCK));
#endif
	has_size(file, BLOCK);
	close_and_delete(file, "contiguous");
	free(data);
}

/* Records of all processes in turns: each one sees its own only, written and read as one piece. */
static void strided(int collective, int step)
{
	int bytes = RECORD * RECORDS, next = (rank + 1) % ranks;
	unsigned char *data = malloc(bytes);
	MPI_Datatype kind;
	MPI_Status status;
	MPI_File file = open_file(MPI_COMM_WORLD, "strided", MPI_MODE_CREATE | MPI_MODE_RDWR);
	MPI(MPI_Type_vector(RECORDS, RECORD, RECORD * ranks, MPI_BYTE, &kind));
	MPI(MPI_Type_commit(&kind));
	fill(data, bytes, rank, 0, step);
	MPI(MPI_File_set_view(file, (MPI_Offset)rank * RECORD, MPI_BYTE, kind, "native", hints));
	if (collective)
		MPI(MPI_File_write_all(file, data, bytes, MPI_BYTE, &status));
	else
		MPI(MPI_File_write(file, data, bytes, MPI_BYTE, &status));
	whole(&status, bytes);
	show(file);
	MPI(MPI_File_set_view(file, (MPI_Offset)next * RECORD, MPI_BYTE, kind, "native", hints));
	memset(data, 0, bytes);
	if (collective)
		MPI(MPI_File_read_all(file, data, bytes, MPI_BYTE, &status));
	else
		MPI(MPI_File_read(file, data, bytes, MPI_BYTE, &status));
	whole(&status, bytes);
	compare(data, bytes, next, 0, step);

	/* Without a view, every record lies where it should. */
	MPI(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", hints));
	for (int record = rank; record < RECORDS * ranks; record += ranks) {
		int writer = (record + 1) % ranks, number = (record + 1) / ranks;
		if (number < RECORDS) {
			MPI(MPI_File_read_at(file, (MPI_Offset)(record + 1) * RECORD, data, RECORD, MPI_BYTE, &status));
			whole(&status, RECORD);
			compare(data, RECORD, writer, (long)number * RECORD, step);
		}
	}
	MPI(MPI_Type_free(&kind));
	close_and_delete(file, "strided");
	free(data);
}

/* Small pieces with gaps, which are written by reading all, changing it and writing it back under a lock: neighbours'
 * pieces must survive. */
static void sieved(int step)
{
	enum { PIECE = 24, PIECES = 2000 };
	int bytes = PIECE * PIECES, next = (rank + 1) % ranks;
	unsigned char *data = malloc(bytes);
	MPI_Datatype kind;
	MPI_Status status;
	MPI_File file = open_file(MPI_COMM_WORLD, "sieved", MPI_MODE_CREATE | MPI_MODE_RDWR);
	MPI(MPI_Type_vector(PIECES, PIECE, PIECE * ranks, MPI_BYTE, &kind));
	MPI(MPI_Type_commit(&kind));
	for (int round = 0; round < 4; round++) {
		fill(data, bytes, rank, 0, step + round);
		MPI(MPI_File_set_view(file, (MPI_Offset)rank * PIECE, MPI_BYTE, kind, "native", hints));
		MPI(MPI_File_write(file, data, bytes, MPI_BYTE, &status));
		whole(&status, bytes);
		show(file);
		MPI(MPI_File_set_view(file, (MPI_Offset)next * PIECE, MPI_BYTE, kind, "native", hints));
		MPI(MPI_File_read(file, data, bytes, MPI_BYTE, &status));
		whole(&status, bytes);
		compare(data, bytes, next, 0, step + round);
		MPI(MPI_Barrier(MPI_COMM_WORLD));
	}
	MPI(MPI_Type_free(&kind));
	close_and_delete(file, "sieved");
	free(data);
}

/* A position that all processes share: in any order, and in the order of ranks. */
static void shared_position(int step)
{
	unsigned char *data = malloc(RECORD), *seen = calloc(ranks, 1);
	MPI_Status status;
	MPI_Offset position;
	MPI_File file = open_file(MPI_COMM_WORLD, "shared", MPI_MODE_CREATE | MPI_MODE_RDWR);
	fill(data, RECORD, rank, 0, step);
	data[0] = (unsigned char)rank;
	MPI(MPI_File_write_shared(file, data, RECORD, MPI_BYTE, &status));
	whole(&status, RECORD);
	show(file);
	for (int turn = 0; turn < ranks; turn++) {
		MPI(MPI_File_read_at(file, (MPI_Offset)turn * RECORD, data, RECORD, MPI_BYTE, &status));
		whole(&status, RECORD);
		CHECK(data[0] < ranks && !seen[data[0]]);
		seen[data[0]] = 1;
		compare(data + 1, RECORD - 1, data[0], 1, step);
	}
	MPI(MPI_Barrier(MPI_COMM_WORLD));
	fill(data, RECORD, rank, 0, step + 1);
	MPI(MPI_File_write_ordered(file, data, RECORD, MPI_BYTE, &status));
	MPI(MPI_Barrier(MPI_COMM_WORLD));
	MPI(MPI_File_get_position_shared(file, &position));
	CHECK(position == (MPI_Offset)2 * ranks * RECORD);
	show(file);
	int next = (rank + 1) % ranks;
	MPI(MPI_File_read_at(file, (MPI_Offset)(ranks + next) * RECORD, data, RECORD, MPI_BYTE, &status));
	compare(data, RECORD, next, 0, step + 1);
	close_and_delete(file, "shared");
	free(data);
	free(seen);
}

/* All write the same bytes at once: in atomic mode the result is one process's, whole, and every read sees one whole. */
static void atomic_mode(int step)
{
	unsigned char *data = malloc(OVERLAP);
	MPI_Status status;
	int is_atomic = 0;
	MPI_File file = open_file(MPI_COMM_WORLD, "atomic", MPI_MODE_CREATE | MPI_MODE_RDWR);
	MPI(MPI_File_set_atomicity(file, 1));
	MPI(MPI_File_get_atomicity(file, &is_atomic));
	CHECK(is_atomic);
	for (int turn = 0; turn < 20; turn++) {
		memset(data, 1 + (rank + turn + step) % 200, OVERLAP);
		MPI(MPI_File_write_at(file, 100, data, OVERLAP, MPI_BYTE, &status));
		whole(&status, OVERLAP);
		MPI(MPI_File_read_at(file, 100, data, OVERLAP, MPI_BYTE, &status));
		whole(&status, OVERLAP);
		CHECK(memcmp(data, data + 1, OVERLAP - 1) == 0);
	}
	close_and_delete(file, "atomic");
	free(data);
}

static void refusals(void)
{
	MPI_File file;
	char path[5000];
	int class = 0;
	snprintf(path, sizeof path, "%s/is-not-there", directory);
	int code = MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, hints, &file);
	CHECK(code != MPI_SUCCESS);
	MPI(MPI_Error_class(code, &class));
	CHECK(class == MPI_ERR_NO_SUCH_FILE);
	file = open_file(MPI_COMM_WORLD, "is-there", MPI_MODE_CREATE | MPI_MODE_WRONLY);
	MPI(MPI_File_close(&file));
	snprintf(path, sizeof path, "%s/is-there", directory);
	code = MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY, hints, &file);
	MPI(MPI_Error_class(code, &class));
	CHECK(class == MPI_ERR_FILE_EXISTS);
	/* The last to close removes it. */
	file = open_file(MPI_COMM_WORLD, "is-there", MPI_MODE_WRONLY | MPI_MODE_DELETE_ON_CLOSE);
	MPI(MPI_File_close(&file));
	MPI(MPI_Barrier(MPI_COMM_WORLD));
	code = MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, hints, &file);
	CHECK(code != MPI_SUCCESS);
}

int main(int argc, char **argv)
{
	begin(&argc, &argv);
	snprintf(directory, sizeof directory, "%s", argv[1]);
	if (argc > 2)
		MPI(MPI_Info_create(&hints));
	for (int word = 2; word < argc; word++) {
		char *value = strchr(argv[word], '=');
		CHECK(value);
		*value = 0;
		MPI(MPI_Info_set(hints, argv[word], value + 1));
	}
	contiguous(0, 1);
	contiguous(1, 2);
	strided(0, 3);
	strided(1, 4);
	sieved(5);
	shared_position(9);
	atomic_mode(11);
	refusals();
	end();
}
