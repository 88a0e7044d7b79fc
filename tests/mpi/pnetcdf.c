/* PnetCDF: variables in rows and records, written collectively, independently and by requests that end later, read by others. */
#include "check.h"
#include <pnetcdf.h>

enum { ROWS = 40, COLUMNS = 300, RECORDS = 5 };

#define NC(call)                                                                                                  \
	do {                                                                                                      \
		int nc_code = (call);                                                                                \
		if (nc_code != NC_NOERR) {                                                                           \
			fprintf(stderr, "%s:%d: rank %d: %s: %s\n", __FILE__, __LINE__, rank, #call, ncmpi_strerror(nc_code)); \
			MPI_Abort(MPI_COMM_WORLD, 1);                                                             \
		}                                                                                                 \
	} while (0)

static void fill(int *data, int rows, int first, int step)
{
	for (int at = 0; at < rows * COLUMNS; at++)
		data[at] = (first + at / COLUMNS) * 10000 + at % COLUMNS + step * 7;
}

static void compare(const int *data, int rows, int first, int step)
{
	for (int at = 0; at < rows * COLUMNS; at++)
		CHECK(data[at] == (first + at / COLUMNS) * 10000 + at % COLUMNS + step * 7);
}

int main(int argc, char **argv)
{
	char path[5000];
	int file, dims[3], grid, own, records, requests[RECORDS], states[RECORDS];
	static int data[ROWS * COLUMNS], many[RECORDS][ROWS * COLUMNS];
	begin(&argc, &argv);
	snprintf(path, sizeof path, "%s/field.nc", argv[1]);
	int next = (rank + 1) % ranks;

	NC(ncmpi_create(MPI_COMM_WORLD, path, NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file));
	NC(ncmpi_def_dim(file, "time", NC_UNLIMITED, &dims[0]));
	NC(ncmpi_def_dim(file, "row", (MPI_Offset)ROWS * ranks, &dims[1]));
	NC(ncmpi_def_dim(file, "column", COLUMNS, &dims[2]));
	NC(ncmpi_def_var(file, "grid", NC_INT, 2, dims + 1, &grid));
	NC(ncmpi_def_var(file, "own", NC_INT, 2, dims + 1, &own));
	NC(ncmpi_def_var(file, "records", NC_INT, 3, dims, &records));
	NC(ncmpi_put_att_text(file, grid, "units", 1, "K"));
	NC(ncmpi_enddef(file));
	MPI_Offset start[2] = {(MPI_Offset)ROWS * rank, 0}, count[2] = {ROWS, COLUMNS};
	fill(data, ROWS, ROWS * rank, 1);
	NC(ncmpi_put_vara_int_all(file, grid, start, count, data));
	for (int record = 0; record < RECORDS; record++) {
		MPI_Offset from[3] = {record, (MPI_Offset)ROWS * rank, 0}, so_many[3] = {1, ROWS, COLUMNS};
		fill(many[record], ROWS, ROWS * rank, 10 + record);
		NC(ncmpi_iput_vara_int(file, records, from, so_many, many[record], &requests[record]));
	}
	NC(ncmpi_wait_all(file, RECORDS, requests, states));
	for (int record = 0; record < RECORDS; record++)
		NC(states[record]);
	NC(ncmpi_begin_indep_data(file));
	fill(data, ROWS, ROWS * rank, 2);
	NC(ncmpi_put_vara_int(file, own, start, count, data));
	NC(ncmpi_end_indep_data(file));
	NC(ncmpi_close(file));

	NC(ncmpi_open(MPI_COMM_WORLD, path, NC_NOWRITE, MPI_INFO_NULL, &file));
	start[0] = (MPI_Offset)ROWS * next;
	NC(ncmpi_get_vara_int_all(file, grid, start, count, data));
	compare(data, ROWS, ROWS * next, 1);
	for (int record = 0; record < RECORDS; record++) {
		MPI_Offset from[3] = {record, (MPI_Offset)ROWS * next, 0}, so_many[3] = {1, ROWS, COLUMNS};
		NC(ncmpi_get_vara_int_all(file, records, from, so_many, data));
		compare(data, ROWS, ROWS * next, 10 + record);
	}
	NC(ncmpi_begin_indep_data(file));
	NC(ncmpi_get_vara_int(file, own, start, count, data));
	compare(data, ROWS, ROWS * next, 2);
	NC(ncmpi_end_indep_data(file));
	NC(ncmpi_close(file));
	end();
}
