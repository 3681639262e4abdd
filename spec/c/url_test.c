/* What scripts cannot see of a URL: names of servers, copies, what is left by a failure. */
#include "url.h"

#include "check.h"

static const char whole[] =
    "memcache+tls://bob:p%40ss@a,B.c:7,[::1]?timeout=2s&ca_path=/c&cert_path=d&key_path=e"
    "&server_name=f";

static void names_are_urls_of_the_server_alone(void) {
    static const char *const pairs[][2] = {
        {"memcache://bob:pw@A.b?timeout=1s", "memcache://A.b:11211"},
        {"MEMCACHE+TLS://h:1/", "memcache+tls://h:1"},
        {"memcache+udp://[fe80::1%25e%2D0]", "memcache+udp://[fe80::1%25e-0]:11211"},
        {"memcache+unix://bob:pw@/tmp/a%20%25%ff:b", "memcache:///tmp/a%20%25%FF:b"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct mj__error error;
        struct mj__url url;
        NEED(mj__url_parse(pairs[i][0], strlen(pairs[i][0]), &url, &error) == 0);
        CHECK(url.count == 1 && strcmp(url.endpoints[0].name, pairs[i][1]) == 0);
        mj__url_free(&url);
        NEED(mj__url_parse(pairs[i][1], strlen(pairs[i][1]), &url, &error) == 0);
        CHECK(url.count == 1 && strcmp(url.endpoints[0].name, pairs[i][1]) == 0);
        mj__url_free(&url);
    }
}

static void copies_own_what_they_hold(void) {
    struct mj__error error;
    struct mj__url url;
    struct mj__endpoint copy;
    NEED(mj__url_parse(whole, sizeof whole - 1, &url, &error) == 0);
    CHECK(url.count == 3);
    NEED(mj__endpoint_copy(&copy, &url.endpoints[1]) == 0);
    mj__url_free(&url);
    CHECK(url.count == 0 && url.endpoints == NULL);
    CHECK(copy.transport == MJ__TCP && copy.tls && copy.port == 7 && !copy.path);
    CHECK(strcmp(copy.host, "B.c") == 0);
    CHECK(strcmp(copy.name, "memcache+tls://B.c:7") == 0);
    CHECK(strcmp(copy.user, "bob") == 0 && strcmp(copy.password, "p@ss") == 0);
    CHECK(copy.options.timeout == 2 * MJ__SECOND &&
          copy.options.stall_timeout == 6 * MJ__SECOND);
    CHECK(strcmp(copy.options.ca_path, "/c") == 0 && strcmp(copy.options.cert_path, "d") == 0);
    CHECK(strcmp(copy.options.key_path, "e") == 0 &&
          strcmp(copy.options.server_name, "f") == 0);
    mj__endpoint_free(&copy);
    mj__endpoint_free(&copy);
}

static void failed_addition_leaves_the_list(void) {
    static const char *const bad[] = {"memcache://d,e,a", "memcache://d:0", "memcache://d,e,",
                                      "memcache://d?weight=0"};
    struct mj__error error;
    struct mj__url url;
    NEED(mj__url_parse("memcache://a,b", 14, &url, &error) == 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(mj__url_add(&url, bad[i], strlen(bad[i]), &error) == -1);
        CHECK(error.kind == MJ__BAD_URL && url.count == 2);
    }
    CHECK(mj__url_add(&url, "memcache://d,e", 14, &error) == 0 && url.count == 4);
    CHECK(strcmp(url.endpoints[0].host, "a") == 0 && strcmp(url.endpoints[3].host, "e") == 0);
    mj__url_free(&url);
}

static void failed_parse_leaves_nothing(void) {
    struct mj__error error;
    struct mj__url url;
    memset(&url, 0xff, sizeof url);
    CHECK(mj__url_parse("memcache://a,b,a", 16, &url, &error) == -1);
    CHECK(url.count == 0 && url.endpoints == NULL);
    CHECK(error.kind == MJ__BAD_URL && error.phase == MJ__PHASE_NONE &&
          error.sent == MJ__SENT_NO);
    mj__url_free(&url);
}

/* Each cut stands at the end of a block of its own, where the sanitizer sees a read past it. */
static void size_is_the_end_of_the_text(void) {
    for (size_t size = 1; size < sizeof whole; size++) {
        struct mj__error error;
        struct mj__url url;
        char *text = malloc(size);
        NEED(text != NULL);
        memcpy(text, whole, size);
        if (mj__url_parse(text, size, &url, &error) != 0) {
            CHECK(error.kind == MJ__BAD_URL && error.text[0] != '\0');
        }
        mj__url_free(&url);
        free(text);
    }
}

int main(void) {
    static const struct check checks[] = {
        {"a server's name is its URL without login and options",
         names_are_urls_of_the_server_alone},
        {"a copied endpoint owns what it holds", copies_own_what_they_hold},
        {"a URL that cannot be added leaves the list as it was",
         failed_addition_leaves_the_list},
        {"a URL that cannot be read leaves nothing to free", failed_parse_leaves_nothing},
        {"the size ends the text, wherever it is cut", size_is_the_end_of_the_text},
    };
    return check_all(checks, sizeof checks / sizeof *checks);
}
