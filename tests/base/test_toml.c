/* TOML: valid documents against a flat dump of their tree, invalid ones against line, column and reason. */
#include "test.h"
#include <math.h>
#include "base/memory.h"
#include "base/toml.h"

/* Appends the tree as one line: tables {k=v,}, arrays [v,], texts 'x', floats with a point or exponent. */
static void dump(const struct mx8_toml *node, char *out, size_t size) {
    size_t at = strlen(out);
    char *end = out + at;
    size_t room = size - at;
    if (node->key) at += (size_t)snprintf(end, room, "%s=", node->key);
    end = out + at;
    room = size - at;
    switch (node->type) {
    case MX8_TOML_TEXT:
        snprintf(end, room, "'%s'", node->text);
        break;
    case MX8_TOML_INT:
        snprintf(end, room, "%lld", (long long)node->integer);
        break;
    case MX8_TOML_FLOAT:
        snprintf(end, room, "%gf", node->number);
        break;
    case MX8_TOML_BOOL:
        snprintf(end, room, node->integer ? "true" : "false");
        break;
    case MX8_TOML_ARRAY:
    case MX8_TOML_TABLE:
        snprintf(end, room, node->type == MX8_TOML_ARRAY ? "[" : "{");
        for (const struct mx8_toml *child = node->child; child; child = child->next) {
            dump(child, out, size);
            if (child->next) snprintf(out + strlen(out), size - strlen(out), ",");
        }
        snprintf(out + strlen(out), size - strlen(out), node->type == MX8_TOML_ARRAY ? "]" : "}");
    }
}

static enum mx8_status parse(const char *text, struct mx8_toml **out) {
    size_t size = strlen(text);
    char *exact = malloc(size + 1); /* not terminated, so that a sanitizer sees every read past the end */
    memcpy(exact, text, size);
    enum mx8_status status = mx8i_parse_toml(exact, size, "t.toml", out);
    free(exact);
    return status;
}

static void test_valid(void **state) {
    (void)state;
    static const struct {
        const char *text, *tree;
    } rows[] = {
        {"", "{}"},
        {"\n\n # c\n", "{}"},
        {"\xEF\xBB\xBF"
         "a=1",
            "{a=1}"},
        {"a = 1 # c\r\nb=2\r\n", "{a=1,b=2}"},
        {"a=0\nb=+99\nc=-17\nd=1_000\ne=-0\nf=9223372036854775807\ng=-9223372036854775808",
            "{a=0,b=99,c=-17,d=1000,e=0,f=9223372036854775807,g=-9223372036854775808}"},
        {"a=0xDEAD_beef\nb=0o755\nc=0b1101", "{a=3735928559,b=493,c=13}"},
        {"a=1.0\nb=-0.01\nc=5e+22\nd=1E06\ne=6.626e-34\nf=9_2.4_1\ng=3e-4",
            "{a=1f,b=-0.01f,c=5e+22f,d=1e+06f,e=6.626e-34f,f=92.41f,g=0.0003f}"},
        {"a=inf\nb=-inf\nc=+inf", "{a=inff,b=-inff,c=inff}"},
        {"a=true\nb=false", "{a=true,b=false}"},
        {"1=1\n3.14=2\n-_=3\n\"a b\"=4\n'x.y'=5\n\"\"=6", "{1=1,3={14=2},-_=3,a b=4,x.y=5,=6}"},
        {"a.b . c = 1\na.\"d e\" = 2", "{a={b={c=1},d e=2}}"},
        {"a=\"x\\ty\\\\z\\\"\\u00e9\\U0001F600\"", "{a='x\ty\\z\"\xC3\xA9\xF0\x9F\x98\x80'}"},
        {"a='C:\\n'", "{a='C:\\n'}"},
        {"a=\"\"\nb=''\nc=\"\"\"\"\"\"\nd=''''''", "{a='',b='',c='',d=''}"},
        {"a=\"\"\"\nx\r\ny\n\"\"\"", "{a='x\ny\n'}"},
        {"a=\"\"\"x \\  \n\n   y\"\"\"", "{a='x y'}"},
        {"a=\"\"\"\"q\"\"\"\"\"\nb=''''q'''''", "{a='\"q\"\"',b=''q'''}"},
        {"a='''\n\\x\n'''", "{a='\\x\n'}"},
        {"a=[]\nb=[1,2,]\nc=[[1],['x',2.5,true]]", "{a=[],b=[1,2],c=[[1],['x',2.5f,true]]}"},
        {"a=[ # c\n 1,\n # d\n 2\n]", "{a=[1,2]}"},
        {"a={}\nb={x=1, y.z='t'}\nc=[{x=1},{x=2}]", "{a={},b={x=1,y={z='t'}},c=[{x=1},{x=2}]}"},
        {"[a]\n[b]\nx=1\n[ c . d ]\ny=2", "{a={},b={x=1},c={d={y=2}}}"},
        {"[quantize.linear.mx]\nfqns=['a','b']", "{quantize={linear={mx={fqns=['a','b']}}}}"},
        {"[a.b]\nx=1\n[a]\ny=2", "{a={b={x=1},y=2}}"},
        {"[a]\nb.c=1\n[a.b.d]\ne=2", "{a={b={c=1,d={e=2}}}}"},
        {"[[a]]\nx=1\n[a.s]\ny=1\n[[a]]\nx=2\n[a.s]\ny=2\n[[a.t]]\n[[a.t]]",
            "{a=[{x=1,s={y=1}},{x=2,s={y=2},t=[{},{}]}]}"},
        {"a=1#c", "{a=1}"},
        {"# \xE2\x82\xAC\ta\na='\xE2\x82\xAC\t'", "{a='\xE2\x82\xAC\t'}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct mx8_toml *root;
        char tree[1000] = "";
        if (parse(rows[i].text, &root)) fail_msg("%s: %s", rows[i].text, mx8_get_last_error());
        dump(root, tree, sizeof tree);
        if (strcmp(tree, rows[i].tree) != 0) fail_msg("%s: is %s, expected %s", rows[i].text, tree, rows[i].tree);
        mx8i_free_toml(root);
    }
}

static void test_invalid(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"a", "1:2: expected ="},
        {"a=", "1:3: expected a value"},
        {"a=\n", "1:3: expected a value"},
        {"\n\n  a 1", "3:5: expected ="},
        {"=1", "1:1: expected a key"},
        {"a.=1", "1:3: expected a key"},
        {"\xC3\xA9=1", "1:1: expected a key"},
        {"\"\"\"a\"\"\"=1", "1:1: a key may not be"},
        {"a=1 b=2", "1:5: expected the end of the line"},
        {"a='\xC3\xA9' x", "1:7: expected the end"}, /* columns count characters */
        {"a=1\nb=2\na=3", "3:1: key \"a\" is given already in line 1"},
        {"a=1\na.b=2", "2:1: \"a\" was completed in line 1"},
        {"a=01", "1:3: \"01\" is no value"},
        {"a=1__0", "is no value"},
        {"a=_1", "is no value"},
        {"a=1_", "is no value"},
        {"a=+0x1", "is no value"},
        {"a=0x", "is no value"},
        {"a=0xG", "is no value"},
        {"a=0b2", "is no value"},
        {"a=.5", "is no value"},
        {"a=5.", "is no value"},
        {"a=5.e3", "is no value"},
        {"a=1e", "is no value"},
        {"a=00.5", "is no value"},
        {"a=1.5_", "is no value"},
        {"a=Inf", "is no value"},
        {"a=True", "is no value"},
        {"a=truex", "is no value"},
        {"a=9223372036854775808", "1:3: number 9223372036854775808 is out of range"},
        {"a=-9223372036854775809", "out of range"},
        {"a=0x8000000000000000", "out of range"},
        {"a=1979-05-27", "1:3: dates and times are not supported"},
        {"a=07:32:00", "dates and times"},
        {"a=\"x", "1:4: string is not closed"},
        {"a=\"x\ny\"", "1:4: string is not closed on its line"},
        {"a='x\r\n'", "string is not closed"},
        {"a=\"\"\"x\n\n\"\"", "1:6: string is not closed"},
        {"a='''x''''''", "1:12: expected the end"}, /* the sixth quote is too many */
        {"a=\"\\x\"", "1:4: unknown escape"},
        {"a=\"\\", "1:4: unknown escape"},
        {"a=\"\\u12G4\"", "4 hexadecimal digits"},
        {"a=\"\\uD800\"", "U+D800 is no Unicode"},
        {"a=\"\\U00110000\"", "is no Unicode"},
        {"a=\"\x01\"", "1:4: control character 0x01"},
        {"a='\x7F'", "control character 0x7F"},
        {"a=\"x\ry\"", "string is not closed"},
        {"# \x02", "1:3: control character 0x02 in a comment"},
        {"a=1\rb=2", "1:4: expected the end"},
        {"a=1\n# \xC3(", "2:3: byte 0xC3 is no UTF-8"},
        {"\xC0\x80", "no UTF-8"},
        {"\xE0\x80\x80", "no UTF-8"},
        {"\xF0\x80\x80\x80", "no UTF-8"},
        {"\xED\xA0\x80", "no UTF-8"},
        {"\xF4\x90\x80\x80", "no UTF-8"},
        {"\xE2\x82", "no UTF-8"},
        {"\"a\\u0000\"=1", "1:1: a key may not contain U+0000"},
        {"a=[1", "1:3: array is not closed"},
        {"a=[1 2]", "1:6: expected , or ]"},
        {"a=[,]", "1:4: expected a value"},
        {"a={x=1", "1:3: inline table is not closed"},
        {"a={x=1,}", "1:8: expected a key after the comma"},
        {"a={x=1\n}", "1:3: inline table is not closed on its line"},
        {"a={x=1 y=2}", "1:8: expected , or }"},
        {"a={x=1,x=2}", "key \"x\" is given already"},
        {"a={x.y=1,x=2}", "given already"},
        {"a={x={y=1},x.z=2}", "completed"},
        {"a={x=1}\na.y=2", "2:1: \"a\" was completed"},
        {"a={x=1}\n[a]", "2:2: \"a\" is given already"},
        {"a={x=1}\n[a.b]", "completed"},
        {"a=[]\n[[a]]", "given already"},
        {"a=[{}]\n[a.b]", "completed"},
        {"[a", "1:3: expected ]"},
        {"[]", "1:2: expected a key"},
        {"[a]b", "1:4: expected the end"},
        {"[[a]", "1:5: expected ]]"},
        {"[a]\n[b]\n[a]", "3:2: \"a\" is given already in line 1"},
        {"[a.b]\n[a]\nb.c=1", "completed in line 1"},
        {"[a]\nb.c=1\n[a.b]", "3:4: \"b\" is given already in line 2"},
        {"[a.b.c]\n[a]\nb.x=1\n[a.b]", "4:4: \"b\" is given already in line 1"},
        {"[a]\n[[a]]", "given already"},
        {"[[a]]\n[a]", "given already"},
        {"a=1\n[a.b]", "completed"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct mx8_toml *root = NULL;
        if (parse(rows[i].text, &root) != MX8_FORMAT_ERROR || root) fail_msg("accepted: %s", rows[i].text);
        if (!strstr(mx8_get_last_error(), rows[i].message) || strncmp(mx8_get_last_error(), "t.toml:", 7) != 0)
            fail_msg("%s: message \"%s\", expected \"%s\"", rows[i].text, mx8_get_last_error(), rows[i].message);
    }
}

/* `count` times `part`, between `head` and `tail`. */
static char *repeat(const char *head, const char *part, int count, const char *tail) {
    size_t size = strlen(part);
    char *text = malloc(strlen(head) + size * (size_t)count + strlen(tail) + 1), *at = stpcpy(text, head);
    for (int i = 0; i < count; i++) at = stpcpy(at, part);
    strcpy(at, tail);
    return text;
}

static void test_limits(void **state) {
    (void)state;
    static const struct {
        const char *head, *part, *tail;
        int deepest; /* the largest count that is accepted */
    } rows[] = {
        {"a=", "[", "", 32}, /* closed below */
        {"", "a.", "a=1", 32},
        {"[", "a.", "a]", 31},
        {"[[", "a.", "a]]", 31},
    };
    struct mx8_toml *root;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int count = rows[i].deepest; count <= rows[i].deepest + 1; count++) {
            char *closing = repeat("", i == 0 ? "]" : "", count, rows[i].tail);
            char *text = repeat(rows[i].head, rows[i].part, count, closing);
            enum mx8_status status = parse(text, &root);
            if (status != (count == rows[i].deepest ? MX8_OK : MX8_FORMAT_ERROR))
                fail_msg("%s gave %s", text, mx8_get_status_name(status));
            if (status == MX8_OK)
                mx8i_free_toml(root);
            else
                assert_message("deeper than 32");
            free(text);
            free(closing);
        }
    char *text = repeat("a=", "[", 1000000, ""); /* no deep recursion */
    assert_status(parse(text, &root), MX8_FORMAT_ERROR);
    free(text);
    text = repeat("a=1", " ", 16 << 20, "");
    assert_status(parse(text, &root), MX8_FORMAT_ERROR);
    assert_message("expected at most");
    free(text);
    text = repeat("", "[[a]]\n", 5000, "");
    assert_status(parse(text, &root), MX8_FORMAT_ERROR);
    assert_message("4097:3: more than 4096 entries");
    free(text);
    text = repeat("a=[", "1,", 100000, "]"); /* arrays may be long */
    assert_ok(parse(text, &root));
    mx8i_free_toml(root);
    free(text);
}

static const char sample[] = "t='a\\n'\n[x.y]\n'k'=[1,{z=\"\"\"\n\\u00e9\"\"\"}]\n[[i]]\nn=nan\nd.e={f=0x1F}\n";

static void test_find_lines_and_nul(void **state) {
    (void)state;
    struct mx8_toml *root;
    assert_ok(parse(sample, &root));
    const struct mx8_toml *items = mx8i_find_toml(root, "i");
    assert_non_null(items);
    assert_int_equal(items->line, 5);
    assert_true(isnan(mx8i_find_toml(items->child, "n")->number));
    assert_int_equal(mx8i_find_toml(items->child, "n")->line, 6);
    assert_null(mx8i_find_toml(root, "y"));
    mx8i_free_toml(root);
    mx8i_free_toml(NULL);
    assert_ok(parse("a=\"x\\u0000y\"", &root)); /* a value may hold it; its size says so */
    assert_int_equal(root->child->text_size, 3);
    assert_memory_equal(root->child->text, "x\0y", 4);
    mx8i_free_toml(root);
    assert_ok(mx8i_parse_toml(NULL, 0, "t.toml", &root));
    mx8i_free_toml(root);
}

static void test_out_of_memory(void **state) {
    (void)state;
    struct mx8_toml *root;
    for (int n = 1, done = 0; !done; n++) {
        mx8i_fail_allocation(n, 0);
        enum mx8_status status = parse(sample, &root);
        mx8i_fail_allocation(0, 0);
        done = status == MX8_OK;
        assert_true(done || status == MX8_OUT_OF_MEMORY);
    }
    mx8i_free_toml(root);
}

/* No prefix and no damaged byte of a document does worse than fail with a place. */
static void test_damage(void **state) {
    (void)state;
    char text[sizeof sample];
    struct mx8_toml *root;
    for (size_t cut = 0; cut < sizeof sample; cut++) {
        memcpy(text, sample, sizeof text);
        text[cut] = 0;
        if (parse(text, &root) == MX8_OK) mx8i_free_toml(root);
    }
    for (size_t i = 0; i + 1 < sizeof sample; i++)
        for (int byte = 1; byte < 256; byte++) {
            memcpy(text, sample, sizeof text);
            text[i] = (char)byte;
            enum mx8_status status = parse(text, &root);
            assert_true(status == MX8_OK || status == MX8_FORMAT_ERROR);
            if (status == MX8_OK) mx8i_free_toml(root);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid),
        cmocka_unit_test(test_invalid),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_find_lines_and_nul),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
