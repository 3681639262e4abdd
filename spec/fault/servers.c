#include "servers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PLAIN, OVER_IP, LOGIN, DEAF, SERVERS };
enum { ATTEMPTS = 2000, GUESTS = 64 };

static char folder[64], paths[SERVERS][108], passwords[108];
static int port;
static pid_t pids[SERVERS];

int servers_port(void) {
    return port;
}

const char *servers_path(void) {
    return paths[PLAIN];
}

const char *servers_login_path(void) {
    return paths[LOGIN];
}

const char *servers_deaf_path(void) {
    return paths[DEAF];
}

static struct sockaddr_un address_of(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    return address;
}

static bool accepts(int server) {
    struct sockaddr_un at = address_of(paths[server]);
    struct sockaddr_in in = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    bool ip = server == OVER_IP;
    int fd = socket(ip ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool fine = connect(fd, ip ? (struct sockaddr *)&in : (struct sockaddr *)&at,
                        ip ? sizeof in : sizeof at) == 0;
    close(fd);
    return fine;
}

static bool wait_for(int server) {
    for (int i = 0; i < ATTEMPTS; i++) {
        if (accepts(server)) {
            return true;
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    printf("not ok the servers start: nobody listens at %s\n", paths[server]);
    return false;
}

/* A port that nobody has now. */
static int free_port(void) {
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof in;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool fine = bind(fd, (struct sockaddr *)&in, sizeof in) == 0 &&
                getsockname(fd, (struct sockaddr *)&in, &size) == 0;
    close(fd);
    return fine ? ntohs(in.sin_port) : 0;
}

static void run_memcached(int server) {
    char number[16];
    const char *user = geteuid() == 0 ? "root" : "nobody";
    const char *words[16] = {"memcached", "-u", user, "-m", "256", "-t", "1"};
    int count = 7;
    if (server == OVER_IP) {
        snprintf(number, sizeof number, "%d", port);
        words[count++] = "-l";
        words[count++] = "127.0.0.1";
        words[count++] = "-p";
        words[count++] = number;
    } else {
        words[count++] = "-s";
        words[count++] = paths[server];
    }
    if (server == LOGIN) {
        words[count++] = "-Y";
        words[count++] = passwords;
    }
    execvp("memcached", (char *const *)words);
    _exit(127);
}

/* Accepts everybody and keeps them until they leave, and never says or hears a word. */
static void run_deaf(int listener) {
    struct pollfd guests[GUESTS + 1] = {{.fd = listener, .events = POLLIN}};
    int count = 1;
    for (;;) {
        guests[0].events = count <= GUESTS ? POLLIN : 0;
        poll(guests, (nfds_t)count, -1);
        for (int i = count - 1; i > 0; i--) {
            if (guests[i].revents != 0) {
                close(guests[i].fd);
                guests[i] = guests[--count];
            }
        }
        if (guests[0].revents & POLLIN) {
            int fd = accept(listener, NULL, NULL);
            if (fd >= 0) {
                guests[count++] = (struct pollfd){.fd = fd, .events = POLLRDHUP};
            }
        }
    }
}

static bool start(int server) {
    int listener = -1;
    snprintf(paths[server], sizeof paths[server], "%s/%d", folder, server);
    if (server == DEAF) {
        struct sockaddr_un at = address_of(paths[server]);
        listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0 ||
            listen(listener, GUESTS) != 0) {
            printf("not ok the servers start: %s\n", strerror(errno));
            return false;
        }
    }
    fflush(stdout);
    pids[server] = fork();
    if (pids[server] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (server == DEAF) {
            run_deaf(listener);
        }
        run_memcached(server);
    }
    if (listener >= 0) {
        close(listener);
    }
    return pids[server] > 0;
}

static bool write_passwords(void) {
    snprintf(passwords, sizeof passwords, "%s/passwords", folder);
    FILE *file = fopen(passwords, "w");
    return file != NULL && fputs("fault:let-me-in\n", file) >= 0 && fclose(file) == 0;
}

bool servers_start(void) {
    snprintf(folder, sizeof folder, "/tmp/moonjay-fault-XXXXXX");
    port = free_port();
    if (mkdtemp(folder) == NULL || chmod(folder, 0755) != 0 || !write_passwords()) {
        printf("not ok the servers start: %s\n", strerror(errno));
        return false;
    }
    for (int i = 0; i < SERVERS; i++) {
        if (!start(i)) {
            return false;
        }
    }
    return wait_for(PLAIN) && wait_for(OVER_IP) && wait_for(LOGIN) && wait_for(DEAF);
}

void servers_stop(void) {
    for (int i = 0; i < SERVERS; i++) {
        if (pids[i] > 0) {
            kill(pids[i], SIGKILL);
            waitpid(pids[i], NULL, 0);
        }
        unlink(paths[i]);
    }
    unlink(passwords);
    rmdir(folder);
}
