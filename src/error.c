#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const kind_names[MJ__KINDS] = {
    [MJ__KIND_NONE] = "",
    [MJ__BAD_URL] = "bad_url",
    [MJ__BAD_KEY] = "bad_key",
    [MJ__BAD_VALUE] = "bad_value",
    [MJ__TOO_LARGE] = "too_large",
    [MJ__UNSUPPORTED] = "unsupported",
    [MJ__RESOLVE] = "resolve",
    [MJ__CONNECT_REFUSED] = "connect_refused",
    [MJ__CONNECT_TIMEOUT] = "connect_timeout",
    [MJ__UNREACHABLE] = "unreachable",
    [MJ__TLS] = "tls",
    [MJ__AUTH] = "auth",
    [MJ__TIMEOUT] = "timeout",
    [MJ__CLOSED] = "closed",
    [MJ__RESET] = "reset",
    [MJ__PROTOCOL] = "protocol",
    [MJ__CLIENT_ERROR] = "client_error",
    [MJ__SERVER_ERROR] = "server_error",
    [MJ__DOWN] = "down",
    [MJ__NO_SERVER] = "no_server",
    [MJ__CANCELLED] = "cancelled",
    [MJ__NO_MEMORY] = "no_memory",
};

const char *mj__kind_name(enum mj__kind kind) {
    return kind_names[kind];
}

const char *mj__phase_name(enum mj__phase phase) {
    static const char *const names[] = {"",      "resolve", "connect", "handshake",
                                        "queue", "write",   "read"};
    return names[phase];
}

const char *mj__sent_name(enum mj__sent sent) {
    static const char *const names[] = {"no", "maybe", "yes"};
    return names[sent];
}

const char *mj__printable(char *out, size_t out_size, const char *bytes, size_t size) {
    static const char hex[] = "0123456789abcdef";
    size_t at = 0;
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        size_t width = byte >= 0x20 && byte < 0x7f ? 1 : 4;
        size_t tail = i + 1 < size ? 3 : 0; /* room for the dots, should the next not fit */
        if (at + width + tail + 1 > out_size) {
            while (at + 4 > out_size) {
                at--;
            }
            memcpy(out + at, "...", 3);
            at += 3;
            break;
        }
        if (width == 1) {
            out[at++] = (char)byte;
        } else {
            out[at++] = '\\';
            out[at++] = 'x';
            out[at++] = hex[byte >> 4];
            out[at++] = hex[byte & 15];
        }
    }
    out[at] = '\0';
    return out;
}

int mj__fail(struct mj__error *error, enum mj__kind kind, const char *format, ...) {
    char raw[MJ__ERROR_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    error->kind = kind;
    error->phase = MJ__PHASE_NONE;
    error->sent = MJ__SENT_NO;
    mj__printable(error->text, sizeof error->text, raw, strlen(raw));
    return -1;
}
