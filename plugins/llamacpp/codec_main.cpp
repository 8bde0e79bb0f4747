// The codec of common/state-codec.cpp on its own, from standard input to standard output:
//
//     codec encode HEADS ROWS COLS ERROR           float32 states -> code
//     codec decode HEADS ROWS COLS                 code -> states
//     codec mutants HEADS ROWS COLS COUNT SEED     decode damaged copies of a code; prints how many were refused
//     codec encode-seq HEADS ROWS COLS ERROR       what llama.cpp saves of a sequence -> code; HEADS are of a layer
//     codec decode-seq                             and back
//     codec mutants-seq COUNT SEED
//     codec time HEADS ROWS COLS ERROR ROUNDS      milliseconds of CPU time of memcpy, encode, decode, the best of all rounds
//
// Exits with 1 if the input is refused.

#include "common/state-codec.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <random>
#include <string>

using bytes = std::vector<uint8_t>;

static bytes read_all() {
    bytes out, part(1 << 20);
    while (const size_t n = fread(part.data(), 1, part.size(), stdin)) {
        out.insert(out.end(), part.begin(), part.begin() + std::ptrdiff_t(n));
    }
    return out;
}

static int write_all(const void * data, size_t size) {
    return size > 0 && fwrite(data, 1, size, stdout) == size ? 0 : 1;
}

static std::vector<float> as_floats(const bytes & data, const common_state_shape & shape) {
    std::vector<float> out(shape.heads * shape.rows * shape.cols);
    if (data.size() != out.size() * sizeof(float)) {
        fprintf(stderr, "the input is not of this shape\n");
        exit(2);
    }
    memcpy(out.data(), data.data(), data.size());
    return out;
}

// changes some bytes, and sometimes the length
static bytes damaged(bytes data, std::mt19937 & random) {
    for (int changes = 1 + int(random() % 4); changes > 0 && !data.empty(); changes--) {
        // half of the changes hit the first bytes, which decide about sizes
        const size_t range = random() % 2 ? data.size() : std::min<size_t>(data.size(), 64);
        data[random() % range] = uint8_t(random());
    }
    switch (random() % 8) {
        case 0: data.resize(random() % (data.size() + 1)); break;
        case 1: data.resize(data.size() + random() % 16, uint8_t(random())); break;
        default: break;
    }
    return data;
}

static int mutants(int count, uint32_t seed, const std::function<bool(const bytes &)> & decode) {
    const bytes data = read_all();
    std::mt19937 random(seed);
    int refused = 0;
    for (int i = 0; i < count; i++) {
        bytes copy = damaged(data, random);
        copy.shrink_to_fit(); // so that a sanitizer sees every byte read past the end
        refused += !decode(copy);
    }
    printf("%d\n", refused);
    return 0;
}

static double best_milliseconds(int rounds, const std::function<void()> & run) {
    double best = 1e30;
    for (int i = 0; i < rounds; i++) {
        const clock_t began = clock(); // of the processor, since a busy machine counts for nothing
        run();
        best = std::min(best, 1000.0 * double(clock() - began) / CLOCKS_PER_SEC);
    }
    return best;
}

static int time_all(const common_state_shape & shape, float error, int rounds) {
    const std::vector<float> states = as_floats(read_all(), shape);
    std::vector<float> out(states.size());
    bytes coded;
    float worst = 0.0f;
    const double copy   = best_milliseconds(rounds, [&] { memcpy(out.data(), states.data(), states.size() * 4); });
    const double encode = best_milliseconds(rounds, [&] {
        coded = common_state_encode(states.data(), shape, error, COMMON_STATE_CODES_ALL, &worst);
    });
    const double decode = best_milliseconds(rounds, [&] {
        common_state_decode(coded.data(), coded.size(), shape, out.data());
    });
    printf("{\"copy_ms\": %.2f, \"encode_ms\": %.2f, \"decode_ms\": %.2f, \"share\": %.4f, \"worst\": %.4f}\n",
            copy, encode, decode, double(coded.size()) / double(states.size() * 4), double(worst));
    return 0;
}

int main(int argc, char ** argv) {
    const std::string command = argc > 1 ? argv[1] : "";
    const auto number = [&](int i) { return i < argc ? strtoul(argv[i], nullptr, 10) : 0; };
    const common_state_shape shape = { number(2), number(3), number(4) };
    const float error = argc > 5 ? strtof(argv[5], nullptr) : 0.05f;
    if (command == "encode") {
        const bytes coded = common_state_encode(as_floats(read_all(), shape).data(), shape, error);
        return write_all(coded.data(), coded.size());
    }
    if (command == "decode") {
        const bytes coded = read_all();
        std::vector<float> states(shape.heads * shape.rows * shape.cols);
        if (!common_state_decode(coded.data(), coded.size(), shape, states.data())) {
            return 1;
        }
        return write_all(states.data(), states.size() * sizeof(float));
    }
    if (command == "mutants") {
        std::vector<float> states(shape.heads * shape.rows * shape.cols);
        return mutants(int(number(5)), uint32_t(number(6)), [&](const bytes & coded) {
            return common_state_decode(coded.data(), coded.size(), shape, states.data());
        });
    }
    if (command == "encode-seq") {
        float worst = 0.0f;
        const bytes coded = common_state_encode_seq(read_all(), shape, error, &worst);
        return write_all(coded.data(), coded.size());
    }
    if (command == "decode-seq") {
        const bytes plain = common_state_decode_seq(read_all());
        return write_all(plain.data(), plain.size());
    }
    if (command == "mutants-seq") {
        return mutants(int(number(2)), uint32_t(number(3)), [](const bytes & coded) {
            return !common_state_decode_seq(coded).empty();
        });
    }
    if (command == "time") {
        return time_all(shape, error, int(number(6)));
    }
    fprintf(stderr, "no such command\n");
    return 2;
}
