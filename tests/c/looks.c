/* Looks names up from threads, a handler of signals that comes at any instruction, and forked children, all at once: each
 * answer is known. Argument: a directory with a file "there" of 4 bytes, and none of the other names. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 400, THREADS = 3, CHILDREN = 10 };

static char there[256], none[256];
static volatile sig_atomic_t wrong, signals;

static void look(void)
{
    struct stat about;
    int before = errno;
    if (stat(there, &about) != 0 || about.st_size != 4)
        wrong = 1;
    if (stat(none, &about) != -1 || errno != ENOENT)
        wrong = 2;
    if (access(none, F_OK) != -1 || errno != ENOENT)
        wrong = 3;
    if (access(there, R_OK) != 0)
        wrong = 4;
    if (open(none, O_RDONLY) != -1 || errno != ENOENT)
        wrong = 5;
    errno = before;
}

static void on_signal(int number)
{
    (void)number;
    signals++;
    look();
}

static void *looks(void *unused)
{
    for (int round = 0; round < ROUNDS; round++)
        look();
    return unused;
}

int main(int count, char **words)
{
    if (count != 2)
        return 2;
    snprintf(there, sizeof there, "%s/there", words[1]);
    snprintf(none, sizeof none, "%s/none", words[1]);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 700}, {0, 700}};
    setitimer(ITIMER_REAL, &often, NULL);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, looks, NULL) != 0)
            return 3;
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        if (child == 0) {
            for (int round = 0; round < 50; round++)
                look();
            _exit(wrong);
        }
        int status = -1;
        while (waitpid(child, &status, 0) == -1 && errno == EINTR)
            ;
        if (status != 0)
            wrong = 6;
    }
    looks(NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    while (signals < 20)
        look();
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    if (wrong)
        printf("wrong: %d\n", (int)wrong);
    else
        puts("right");
    return wrong;
}
