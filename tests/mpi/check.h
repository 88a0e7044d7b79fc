/* What the MPI programs of these tests share: a check that says what did not hold and ends all processes; contents that tell
 * which process has written which byte of which step. */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

#define CHECK(held)                                                                               \
	do {                                                                                      \
		if (!(held)) {                                                                    \
			fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, rank, #held); \
			MPI_Abort(MPI_COMM_WORLD, 1);                                             \
		}                                                                                 \
	} while (0)

#define MPI(call)                                                                                               \
	do {                                                                                                    \
		int mpi_code = (call), length;                                                                    \
		char why[MPI_MAX_ERROR_STRING];                                                                 \
		if (mpi_code != MPI_SUCCESS) {                                                                   \
			MPI_Error_string(mpi_code, why, &length);                                                   \
			fprintf(stderr, "%s:%d: rank %d: %s: %s\n", __FILE__, __LINE__, rank, #call, why);      \
			MPI_Abort(MPI_COMM_WORLD, 1);                                                           \
		}                                                                                               \
	} while (0)

static void begin(int *argc, char ***argv)
{
	MPI(MPI_Init(argc, argv));
	MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
	MPI(MPI_Comm_size(MPI_COMM_WORLD, &ranks));
	CHECK(*argc >= 2 && ranks >= 2);
}

/* All processes have come here, so that all has been compared: the first one says so. */
static void end(void)
{
	MPI(MPI_Barrier(MPI_COMM_WORLD));
	if (rank == 0)
		printf("all is well with %d processes\n", ranks);
	MPI(MPI_Finalize());
}

#endif
