/* The first and only process of the emulated machine: runs the commands of a list one after the other, prints what each
 * returned and how many instructions it took, and switches the machine off.
 *
 * In C and without any library beyond libc, because it is linked statically into an image of a few megabytes.
 * tools/emulation/make_image.py writes the list: each command an environment of NAME=VALUE lines, a program and its
 * arguments, one a line, then an empty line. tools/emulation/run.sh reads the lines that start with "@init:". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

enum { kMaxWords = 256, kShutdownPort = 0x8900 };

static void SwitchOff(void) {
  const char* c;
  fflush(stdout);
  tcdrain(STDOUT_FILENO);
  /* The emulator ends when it gets this word at this port. */
  if (iopl(3) == 0) {
    for (c = "Shutdown"; *c != '\0'; ++c) outb((unsigned char)*c, kShutdownPort);
  }
  reboot(RB_POWER_OFF);
  for (;;) pause();
}

/* The time stamp counter of this emulator counts instructions. */
static unsigned long long Instructions(void) { return __builtin_ia32_rdtsc(); }

/* Reads one command. Returns its number of words, of which the first *num_variables are its environment; 0 at the end. */
static int ReadCommand(FILE* list, char** words, int* num_variables) {
  char line[4096];
  int n = 0;
  *num_variables = 0;
  while (fgets(line, sizeof(line), list) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    if (line[0] == '\0') break;
    if (n == kMaxWords - 1) continue;
    if (*num_variables == n && line[0] != '/' && strchr(line, '=') != NULL) ++*num_variables;
    words[n++] = strdup(line);
  }
  words[n] = NULL;
  return n;
}

int main(void) {
  static char* words[kMaxWords];
  int index, num_variables, status;
  FILE* list;
  mount("proc", "/proc", "proc", 0, NULL);
  mount("tmpfs", "/tmp", "tmpfs", 0, NULL);
  printf("\n@init: booted, instructions %llu\n", Instructions());
  list = fopen("/commands", "r");
  if (list == NULL) SwitchOff();
  for (index = 0; ReadCommand(list, words, &num_variables) > num_variables; ++index) {
    unsigned long long begin;
    pid_t child;
    printf("\n@init: begin %d\n", index);
    fflush(stdout);
    begin = Instructions();
    child = fork();
    if (child == 0) {
      char* const program = words[num_variables];
      char** const arguments = words + num_variables;
      char* environment[kMaxWords];
      memcpy(environment, words, sizeof(char*) * (size_t)num_variables);
      environment[num_variables] = NULL;
      execve(program, arguments, environment);
      perror(program);
      _exit(127);
    }
    waitpid(child, &status, 0);
    status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    printf("\n@init: end %d status %d instructions %llu\n", index, status, Instructions() - begin);
    fflush(stdout);
  }
  printf("\n@init: done\n");
  SwitchOff();
  return 0;
}
