// Computes what standard input tells, by llama.cpp, and prints the seconds that it took: "prompt N" is a prompt of N
// tokens, "decode B N D" are N tokens of each of B sequences after D tokens each. Arguments: GGUF, threads, folder of backends.
#include "ggml-backend.h"
#include "llama.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int main(int, char ** arguments) {
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
    }, nullptr);
    ggml_backend_load_all_from_path(arguments[3]);
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(arguments[1], llama_model_default_params());
    auto params = llama_context_default_params();
    params.n_ctx = 8192; params.n_batch = 2048; params.n_ubatch = 512; params.n_seq_max = 8; params.kv_unified = true;
    params.n_threads = params.n_threads_batch = atoi(arguments[2]);
    llama_context * context = model ? llama_init_from_model(model, params) : nullptr;
    if (!context) return 1;
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_batch batch = llama_batch_init(2048, 0, 1);
    auto add = [&](int sequence, int position, bool is_wanted) {
        const int row = batch.n_tokens++;
        batch.token[row] = 3 + (sequence * 7919 + position * 104729) % (vocabulary - 3);
        batch.pos[row] = position; batch.n_seq_id[row] = 1; batch.seq_id[row][0] = sequence; batch.logits[row] = is_wanted;
    };
    auto compute = [&] {
        if (llama_decode(context, batch)) exit(2);
        llama_synchronize(context);
        batch.n_tokens = 0;
    };
    auto prompt = [&](int sequence, int count) {
        for (int position = 0; position < count; position++) add(sequence, position, position == count - 1);
        compute();
    };
    puts("ready"); fflush(stdout);
    for (char kind[8]; scanf("%7s", kind) == 1;) {
        int sequences, count, before;
        llama_memory_clear(llama_get_memory(context), true);
        double began = now();
        if (!strcmp(kind, "prompt")) {
            if (scanf("%d", &count) != 1) return 3;
            prompt(0, count);
        } else {
            if (scanf("%d %d %d", &sequences, &count, &before) != 3) return 3;
            for (int sequence = 0; sequence < sequences; sequence++) prompt(sequence, before);
            began = now();
            for (int token = 0; token < count; token++) {
                for (int sequence = 0; sequence < sequences; sequence++) add(sequence, before + token, true);
                compute();
                for (int row = 0; row < sequences; row++) { // greedily
                    const float * logits = llama_get_logits_ith(context, row);
                    volatile long best = std::max_element(logits, logits + vocabulary) - logits; (void) best;
                }
            }
        }
        printf("%.6f\n", now() - began); fflush(stdout);
    }
}
