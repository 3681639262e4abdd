/* servers.h: the other side, in processes of their own. */
#ifndef SERVERS_H
#define SERVERS_H

#include <stdbool.h>

/* Starts real memcacheds, on a port of 127.0.0.1, on a path, and on a path with logins (fault and
 * let-me-in), and one that accepts and never reads or writes. They end with this process. False,
 * with a line on standard output: something did not start. */
bool servers_start(void);
void servers_stop(void);

int servers_port(void);
const char *servers_path(void);
const char *servers_login_path(void);
const char *servers_deaf_path(void);

#endif
