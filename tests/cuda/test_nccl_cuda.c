/* The NCCL transport with one GPU: a world of one goes through the library as a larger one does. */
#include "cuda_test.h"
#include "base/memory.h"
#include "dist/dist.h"

static const struct mx8_comm_host host = {mx8i_fail, mx8i_allocate, mx8i_release};

static void test_world_of_one(void **state) {
    (void)state;
    NEEDS_CUDA();
    const struct mx8_exec *x = &cuda.exec;
    void *library = dlopen("libnccl.so.2", RTLD_NOW);
    if (!library) {
        print_message("skipped: no libnccl.so.2: %s\n", dlerror());
        skip();
    }
    mx8_open_nccl_function open;
    void *symbol = dlsym(cuda.library, "mx8_open_nccl");
    if (!symbol) fail_msg("the CUDA backend has no mx8_open_nccl");
    memcpy(&open, &symbol, sizeof open);
    struct mx8_traffic traffic = {0};
    struct mx8_comm self, world, group;
    mx8i_open_self(&self, NULL);
    assert_ok(open(&host, &self, 0, x->stream, 10, &world));
    world.traffic = &traffic;
    const int32_t member = 0;
    assert_ok(world.t->make_group(&world, &member, 1, &group));
    group.traffic = &traffic;

    enum { N = 100003 };
    static float in[N], out[N], got[N];
    float *device_in = make_buffer(sizeof in, 0), *device_out = make_buffer(sizeof out, 0);
    for (int i = 0; i < N; i++) in[i] = (float)i, out[i] = 0.5f;
    assert_ok(x->k->upload(x, device_in, in, sizeof in));
    assert_ok(x->k->upload(x, device_out, out, sizeof out));

    const size_t cut[2] = {0, N}, bytes[2] = {0, sizeof in};
    for (int32_t accumulate = 1; accumulate >= 0; accumulate--) {
        int32_t ticket = 0, second = 0;
        assert_ok(group.t->start_gather(&group, device_in, bytes, &second));
        assert_ok(group.t->start_reduce(&group, device_out, device_in, cut, accumulate, NULL, &ticket));
        group.t->poll(&group);
        assert_ok(group.t->wait(&group, &ticket));
        assert_ok(group.t->wait(&group, &second));
        assert_int_equal(ticket, 0);
        assert_ok(group.t->settle(&group));
        assert_ok(x->k->download(x, got, device_out, sizeof got));
        for (int i = 0; i < N; i++) assert_true(got[i] == in[i] + (accumulate ? 0.5f : 0.0f));
    }
    struct mx8_part part = {.send = device_in, .send_bytes = 64, .receive = device_out + 16, .receive_bytes = 64};
    int32_t ticket = 0;
    assert_ok(world.t->start_exchange(&world, &part, 1, &ticket));
    assert_ok(world.t->wait(&world, &ticket));
    assert_ok(world.t->settle(&world));
    assert_ok(x->k->download(x, got, device_out, sizeof got));
    for (int i = 0; i < 16; i++) assert_true(got[16 + i] == in[i]);
    assert_int_equal(traffic.sent, 0); /* nobody else is there */
    group.t->close(&group);
    world.t->close(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(test_world_of_one, begin_cuda_test)};
    return cmocka_run_group_tests(tests, open_cuda, close_cuda);
}
