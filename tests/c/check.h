/* What the C programs of these tests share: a check that says what did not hold, and with which errno. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(held)                                                                                                \
	do {                                                                                                       \
		if (!(held)) {                                                                                     \
			int number = errno;                                                                        \
			fprintf(stderr, "%s:%d: %s: errno %d (%s)\n", __FILE__, __LINE__, #held, number,           \
				strerror(number));                                                                 \
			exit(1);                                                                                   \
		}                                                                                                  \
	} while (0)

/* The call fails with this errno. */
#define FAILS(call, expected)                                                                                      \
	do {                                                                                                       \
		errno = 0;                                                                                         \
		long long given = (long long)(call);                                                               \
		if (given != -1 || errno != (expected)) {                                                          \
			fprintf(stderr, "%s:%d: %s: gave %lld, errno %d (%s) instead of %d\n", __FILE__, __LINE__, \
				#call, given, errno, strerror(errno), (expected));                                 \
			exit(1);                                                                                   \
		}                                                                                                  \
	} while (0)

#endif
