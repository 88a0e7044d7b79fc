/* A library that leaves libc's text in many mappings, as those do that patch functions of libc. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096

__attribute__((constructor)) static void split(void)
{
	char line[500];
	unsigned long start, end;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps)) {
		if (!strstr(line, " r-xp ") || !strstr(line, "/libc.so.6") || sscanf(line, "%lx-%lx", &start, &end) != 2)
			continue;
		for (unsigned long at = start; at + PAGE < end; at += 2 * PAGE)
			mprotect((void *)at, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC);
		break;
	}
	if (maps)
		fclose(maps);
}
