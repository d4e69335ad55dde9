/* The least that starting a command can cost: posix_spawn and waitpid in a static program.
 *
 * usage: spawn_loop RUNS PROGRAM [ARGUMENT...]
 */
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv)
{
	posix_spawn_file_actions_t actions;
	long runs = argc > 2 ? atol(argv[1]) : 0;

	if (runs < 1) {
		fprintf(stderr, "usage: spawn_loop RUNS PROGRAM [ARGUMENT...]\n");
		return 2;
	}
	posix_spawn_file_actions_init(&actions);
	for (int fd = 0; fd < 3; fd++)
		posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDWR, 0);
	for (long run = 0; run < runs; run++) {
		pid_t child;
		int status;

		if (posix_spawnp(&child, argv[2], &actions, NULL, argv + 2, environ) ||
		    waitpid(child, &status, 0) < 0 || status) {
			fprintf(stderr, "spawn_loop: %s did not run or failed\n", argv[2]);
			return 1;
		}
	}
	return 0;
}
