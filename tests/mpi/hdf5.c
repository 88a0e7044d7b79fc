/*
 * HDF5 in parallel: a data set in rows and one in chunks, written collectively and independently, extended, read in columns
 * by other processes than those that have written it.
 */
#include "check.h"
#include <hdf5.h>

enum { ROWS = 60, COLUMNS = 480 };

static double value(hsize_t row, hsize_t column, int step)
{
	return (double)row * 1000.0 + (double)column + step * 0.25;
}

static hid_t transfers(int collective)
{
	hid_t list = H5Pcreate(H5P_DATASET_XFER);
	CHECK(H5Pset_dxpl_mpio(list, collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT) >= 0);
	return list;
}

/* Each process's rows, or columns, of all. */
static void part(hsize_t rows, int by_rows, hsize_t start[2], hsize_t count[2])
{
	start[0] = by_rows ? rows / ranks * rank : 0;
	count[0] = by_rows ? rows / ranks : rows;
	start[1] = by_rows ? 0 : COLUMNS / ranks * rank;
	count[1] = by_rows ? COLUMNS : COLUMNS / ranks;
}

static void move(hid_t set, hsize_t rows, int writes, int collective, int step)
{
	hsize_t start[2], count[2];
	part(rows, writes, start, count);
	hid_t in_file = H5Dget_space(set), in_memory = H5Screate_simple(2, count, NULL), list = transfers(collective);
	double *data = calloc(count[0] * count[1], sizeof *data);
	CHECK(H5Sselect_hyperslab(in_file, H5S_SELECT_SET, start, NULL, count, NULL) >= 0);
	for (hsize_t at = 0; writes && at < count[0] * count[1]; at++)
		data[at] = value(start[0] + at / count[1], start[1] + at % count[1], step);
	if (writes)
		CHECK(H5Dwrite(set, H5T_NATIVE_DOUBLE, in_memory, in_file, list, data) >= 0);
	else
		CHECK(H5Dread(set, H5T_NATIVE_DOUBLE, in_memory, in_file, list, data) >= 0);
	for (hsize_t at = 0; !writes && at < count[0] * count[1]; at++)
		CHECK(data[at] == value(start[0] + at / count[1], start[1] + at % count[1], step));
	free(data);
	H5Pclose(list);
	H5Sclose(in_memory);
	H5Sclose(in_file);
}

static void once(const char *path, int collective, int chunked, int step)
{
	hsize_t dims[2] = {ROWS * ranks, COLUMNS}, limit[2] = {H5S_UNLIMITED, COLUMNS}, chunk[2] = {16, 96};
	hid_t access = H5Pcreate(H5P_FILE_ACCESS), made = H5Pcreate(H5P_DATASET_CREATE);
	CHECK(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL) >= 0);
	CHECK(H5Pset_coll_metadata_write(access, collective) >= 0);
	if (chunked)
		CHECK(H5Pset_chunk(made, 2, chunk) >= 0);
	hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
	CHECK(file >= 0);
	hid_t space = H5Screate_simple(2, dims, chunked ? limit : NULL);
	hid_t set = H5Dcreate2(file, "field", H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, made, H5P_DEFAULT);
	CHECK(set >= 0);
	move(set, dims[0], 1, collective, step);
	if (chunked) {
		dims[0] *= 2;
		CHECK(H5Dset_extent(set, dims) >= 0);
		move(set, dims[0], 1, collective, step);
	}
	CHECK(H5Dclose(set) >= 0 && H5Fclose(file) >= 0);

	file = H5Fopen(path, H5F_ACC_RDONLY, access);
	CHECK(file >= 0);
	set = H5Dopen2(file, "field", H5P_DEFAULT);
	CHECK(set >= 0);
	move(set, dims[0], 0, collective, step);
	move(set, dims[0], 0, !collective, step);
	CHECK(H5Dclose(set) >= 0 && H5Fclose(file) >= 0);
	H5Sclose(space);
	H5Pclose(made);
	H5Pclose(access);
}

int main(int argc, char **argv)
{
	char path[5000];
	begin(&argc, &argv);
	snprintf(path, sizeof path, "%s/field.h5", argv[1]);
	for (int kind = 0; kind < 4; kind++)
		once(path, kind & 1, kind >> 1, kind);
	end();
}
