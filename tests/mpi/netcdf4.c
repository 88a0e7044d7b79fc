/* NetCDF-4 in parallel, on HDF5: a variable of fixed size and one that grows, collectively and independently. */
#include "check.h"
#include <netcdf.h>
#include <netcdf_par.h>

enum { ROWS = 30, COLUMNS = 200, TIMES = 4 };

#define NC(call)                                                                                               \
	do {                                                                                                   \
		int nc_code = (call);                                                                             \
		if (nc_code != NC_NOERR) {                                                                        \
			fprintf(stderr, "%s:%d: rank %d: %s: %s\n", __FILE__, __LINE__, rank, #call, nc_strerror(nc_code)); \
			MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
		}                                                                                              \
	} while (0)

static double value(int time, int row, int column)
{
	return time * 1e6 + row * 1e3 + column;
}

int main(int argc, char **argv)
{
	char path[5000];
	int file, dims[3], fixed, growing;
	static double data[ROWS * COLUMNS];
	begin(&argc, &argv);
	snprintf(path, sizeof path, "%s/field.nc4", argv[1]);
	int next = (rank + 1) % ranks;

	NC(nc_create_par(path, NC_NETCDF4 | NC_CLOBBER, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
	NC(nc_def_dim(file, "time", NC_UNLIMITED, &dims[0]));
	NC(nc_def_dim(file, "row", (size_t)ROWS * ranks, &dims[1]));
	NC(nc_def_dim(file, "column", COLUMNS, &dims[2]));
	NC(nc_def_var(file, "fixed", NC_DOUBLE, 2, dims + 1, &fixed));
	NC(nc_def_var(file, "growing", NC_DOUBLE, 3, dims, &growing));
	NC(nc_enddef(file));
	/* A variable that grows can be written collectively only: HDF5 says so. */
	NC(nc_var_par_access(file, fixed, NC_INDEPENDENT));
	NC(nc_var_par_access(file, growing, NC_COLLECTIVE));
	for (int time = 0; time < TIMES; time++) {
		size_t start[3] = {time, (size_t)ROWS * rank, 0}, count[3] = {1, ROWS, COLUMNS};
		for (int at = 0; at < ROWS * COLUMNS; at++)
			data[at] = value(time, ROWS * rank + at / COLUMNS, at % COLUMNS);
		NC(nc_put_vara_double(file, growing, start, count, data));
		if (time == 0)
			NC(nc_put_vara_double(file, fixed, start + 1, count + 1, data));
	}
	NC(nc_close(file));

	NC(nc_open_par(path, NC_NOWRITE, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
	NC(nc_inq_varid(file, "growing", &growing));
	NC(nc_inq_varid(file, "fixed", &fixed));
	NC(nc_var_par_access(file, fixed, NC_COLLECTIVE));
	for (int time = 0; time < TIMES; time++) {
		size_t start[3] = {time, (size_t)ROWS * next, 0}, count[3] = {1, ROWS, COLUMNS};
		NC(nc_get_vara_double(file, growing, start, count, data));
		for (int at = 0; at < ROWS * COLUMNS; at++)
			CHECK(data[at] == value(time, ROWS * next + at / COLUMNS, at % COLUMNS));
		if (time == 0) {
			NC(nc_get_vara_double(file, fixed, start + 1, count + 1, data));
			for (int at = 0; at < ROWS * COLUMNS; at++)
				CHECK(data[at] == value(0, ROWS * next + at / COLUMNS, at % COLUMNS));
		}
	}
	NC(nc_close(file));
	end();
}
