/* The least wrapper: notes what it was asked, and executes it.

   passthrough FILE ARGV0 [ARG...]

   Appends "FILE|ARGV0|ARG..." and a newline to the file that PASSTHROUGH_LOG
   names, in one write, so that many can run at once.  When execve () fails it
   exits with 99 and says so: the shell shouldn't have asked.  With 97 it says
   that its own name isn't EXEC_WRAPPER's value (or BASH_EXEC_WRAPPER's).  */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

int
main (int argc, char **argv)
{
  const char *log = getenv ("PASSTHROUGH_LOG"), *named = getenv ("EXEC_WRAPPER");
  size_t size = 1, len = 0;
  char *line;
  int fd, i;

  if (argc < 3)
    {
      fprintf (stderr, "usage: passthrough FILE ARGV0 [ARG...]\n");
      return 98;
    }
  if (named == 0 || *named == '\0')
    named = getenv ("BASH_EXEC_WRAPPER");
  if (named == 0 || strcmp (named, argv[0]) != 0)
    {
      fprintf (stderr, "passthrough: my name is %s\n", argv[0]);
      return 97;
    }
  if (log && *log && (fd = open (log, O_WRONLY|O_APPEND|O_CREAT|O_CLOEXEC, 0644)) >= 0)
    {
      for (i = 1; i < argc; i++)
	size += strlen (argv[i]) + 1;
      if ((line = malloc (size)))
	{
	  for (i = 1; i < argc; i++)
	    len += (size_t)sprintf (line + len, "%s%s", i > 1 ? "|" : "", argv[i]);
	  line[len++] = '\n';
	  if (write (fd, line, len) < 0)
	    perror ("passthrough: log");
	  free (line);
	}
      close (fd);
    }
  execve (argv[1], argv + 2, environ);
  fprintf (stderr, "passthrough: %s: %s\n", argv[1], strerror (errno));
  return 99;
}
