#include "state-codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

// the inner loops for newer processors as well, since this file is built for the oldest
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define STATE_CODEC_CLONES __attribute__((target_clones("arch=haswell", "default")))
#else
#define STATE_CODEC_CLONES
#endif

namespace {

const uint8_t LOW_RANK = 0, BFLOAT16 = 16, FLOAT32 = 32; // modes of a head; 4, 5, 6, 8: bits of a dense code

const std::array<int, 4> DENSE = { 4, 5, 6, 8 };

const int    MIN_WIDTH      = 3; // bits of a component's numbers
const int    MAX_WIDTH      = 8;
const size_t MAX_RANK       = 255;
const int    COMPONENT_BITS = 20; // step and width of a component
const int    MAX_EXPONENT   = 100;
const size_t MAX_NUMBERS    = size_t(1) << 31; // of states that are coded together
const size_t MAX_WIDE       = size_t(1) << 20; // rows or columns

const double FLOOR             = 0.02;  // of the float32 bytes; below, a state of one repeated token lost too much
const double MARGIN            = 0.999; // of the bound: float32 sums are that exact
const double MISSED            = 0.5;   // the error left outside a subspace may be this share of the bound
const double CONVOLUTION_ERROR = 0.01;  // of convolution states, at most

// thresholds of a component's error, relative to the bound: 4 per octave, from coarse to fine
const int STEPS_PER_OCTAVE = 4, COARSEST = -4, FINEST = 40;

//
// numbers
//

uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

// of a number >= 0, to the nearest, ties to even
uint16_t to_half(float x) {
    uint32_t bits = bits_of(x);
    if (bits >= 0x47800000) { // 2^16
        return 0x7c00;
    }
    if (bits < 0x38800000) { // 2^-14: subnormal, a multiple of 2^-24, which is the unit in the last place of 0.5
        return uint16_t(bits_of(x + 0.5f) - bits_of(0.5f));
    }
    bits += 0xfff + ((bits >> 13) & 1);
    return uint16_t((bits - 0x38000000) >> 13);
}

// of a number >= 0 that is finite
float from_half(uint16_t half) {
    return half < 0x400 ? std::ldexp(float(half), -24) : float_of((uint32_t(half) << 13) + 0x38000000);
}

uint16_t to_bfloat16(float x) {
    const uint32_t bits = bits_of(x);
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float from_bfloat16(uint16_t x) {
    return float_of(uint32_t(x) << 16);
}

int levels(int width) { // the largest magnitude of a code
    return width == 0 ? 0 : (1 << (width - 1)) - 1;
}

// x / step to the nearest integer within +-limit, ties to even, plus limit
STATE_CODEC_CLONES
void round_codes(const float * x, size_t n, float step, int limit, uint8_t * codes) {
    const float inverse = 1.0f / step, top = float(limit);
    const float magic   = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
    for (size_t i = 0; i < n; i++) {
        const float bounded = std::min(std::max(x[i] * inverse, -top), top);
        codes[i] = uint8_t(int((bounded + magic) - magic) + limit);
    }
}

STATE_CODEC_CLONES
void expand_codes(const uint8_t * codes, size_t n, float step, int limit, float * x) {
    for (size_t i = 0; i < n; i++) {
        x[i] = float(int(codes[i]) - limit) * step;
    }
}

//
// matrices
//

struct matrix {
    size_t rows = 0, cols = 0;
    std::vector<float> x;

    matrix() = default;
    matrix(size_t rows, size_t cols) : rows(rows), cols(cols), x(rows * cols) {}

    float * row(size_t i)             { return x.data() + i * cols; }
    const float * row(size_t i) const { return x.data() + i * cols; }

    matrix transposed() const {
        matrix out(cols, rows);
        for (size_t i = 0; i < rows; i++) {
            for (size_t j = 0; j < cols; j++) {
                out.row(j)[i] = row(i)[j];
            }
        }
        return out;
    }
};

// y += sum of factors[i * stride] * (row i of x), n numbers each
STATE_CODEC_CLONES
void add_rows(float * y, const float * x, size_t n, const float * factors, size_t stride, size_t count) {
    size_t i = 0;
    for (; i + 4 <= count; i += 4, x += 4 * n) {
        const float a = factors[i * stride],       b = factors[(i + 1) * stride];
        const float c = factors[(i + 2) * stride], d = factors[(i + 3) * stride];
        for (size_t j = 0; j < n; j++) {
            y[j] += (a * x[j] + b * x[n + j]) + (c * x[2 * n + j] + d * x[3 * n + j]);
        }
    }
    for (; i < count; i++, x += n) {
        const float a = factors[i * stride];
        for (size_t j = 0; j < n; j++) {
            y[j] += a * x[j];
        }
    }
}

STATE_CODEC_CLONES
double dot(const float * x, const float * y, size_t n) {
    double sum = 0.0;
    size_t i = 0;
    while (i < n) {
        float lanes[8] = {};
        const size_t end = std::min(n, i + 512); // short sums, so that float is exact enough
        for (; i + 8 <= end; i += 8) {
            for (int lane = 0; lane < 8; lane++) {
                lanes[lane] += x[i + lane] * y[i + lane];
            }
        }
        for (float lane : lanes) {
            sum += lane;
        }
        for (; i < end; i++) {
            sum += double(x[i]) * y[i];
        }
    }
    return sum;
}

matrix multiply(const matrix & a, const matrix & b) {
    matrix out(a.rows, b.cols);
    for (size_t i = 0; i < a.rows; i++) {
        add_rows(out.row(i), b.x.data(), b.cols, a.row(i), 1, a.cols);
    }
    return out;
}

void multiply_by(float factor, float * x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        x[i] *= factor;
    }
}

float largest_of(const float * x, size_t n) {
    float largest = 0.0f;
    for (size_t i = 0; i < n; i++) {
        largest = std::max(largest, std::fabs(x[i]));
    }
    return largest;
}

// makes rows orthonormal; those that depend on others become zero
void orthonormalize(matrix & a) {
    for (size_t i = 0; i < a.rows; i++) {
        const double before = std::sqrt(dot(a.row(i), a.row(i), a.cols));
        for (size_t j = 0; j < i; j++) {
            const float overlap = -float(dot(a.row(i), a.row(j), a.cols));
            add_rows(a.row(i), a.row(j), a.cols, &overlap, 1, 1);
        }
        const double after = std::sqrt(dot(a.row(i), a.row(i), a.cols));
        const float factor = after > 1e-5 * before ? float(1.0 / after) : 0.0f;
        multiply_by(factor, a.row(i), a.cols);
    }
}

// Jacobi rotations: the diagonal of symmetric a [n, n] becomes its eigenvalues; returns the eigenvectors as rows
std::vector<double> diagonalize(std::vector<double> & a, size_t n) {
    std::vector<double> vectors(n * n);
    double trace = 0.0;
    for (size_t i = 0; i < n; i++) {
        vectors[i * n + i] = 1.0;
        trace += a[i * n + i];
    }
    const auto rotate = [n](double * x, double * y, size_t stride, double c, double s) {
        for (size_t i = 0; i < n * stride; i += stride) {
            const double u = x[i], v = y[i];
            x[i] = c * u - s * v;
            y[i] = s * u + c * v;
        }
    };
    bool done = false;
    for (int sweep = 0; sweep < 30 && !done; sweep++) {
        done = true;
        for (size_t p = 0; p < n; p++) {
            for (size_t q = p + 1; q < n; q++) {
                const double product = a[p * n + q], pp = a[p * n + p], qq = a[q * n + q];
                if (std::fabs(product) <= 1e-7 * std::sqrt(std::fabs(pp * qq)) + 1e-14 * trace) {
                    continue;
                }
                done = false;
                const double theta = (qq - pp) / (2.0 * product);
                const double t = std::copysign(1.0, theta) / (std::fabs(theta) + std::sqrt(theta * theta + 1.0));
                const double c = 1.0 / std::sqrt(t * t + 1.0), s = t * c;
                rotate(&a[p * n], &a[q * n], 1, c, s);
                rotate(&a[p], &a[q], n, c, s);
                rotate(&vectors[p * n], &vectors[q * n], 1, c, s);
            }
        }
    }
    return vectors;
}

// right singular vectors of basis x state, the strongest first; the weakest, which float32 does not resolve, are zero
matrix right_vectors(const matrix & spanned) {
    const size_t n = spanned.rows;
    std::vector<double> gram(n * n);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i; j < n; j++) {
            gram[i * n + j] = gram[j * n + i] = dot(spanned.row(i), spanned.row(j), spanned.cols);
        }
    }
    const std::vector<double> rotation = diagonalize(gram, n);
    std::vector<size_t> order(n);
    for (size_t i = 0; i < n; i++) {
        order[i] = i;
    }
    std::sort(order.begin(), order.end(), [&](size_t i, size_t j) { return gram[i * n + i] > gram[j * n + j]; });
    matrix turned(n, n);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            turned.row(i)[j] = float(rotation[order[i] * n + j]);
        }
    }
    matrix vectors = multiply(turned, spanned);
    double longest = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double length = std::sqrt(dot(vectors.row(i), vectors.row(i), vectors.cols));
        longest = std::max(longest, length);
        const float factor = length > 1e-4 * longest ? float(1.0 / length) : 0.0f;
        multiply_by(factor, vectors.row(i), vectors.cols);
    }
    return vectors;
}

//
// the low-rank code of a head
//

struct component_codes {
    std::vector<uint8_t>  widths;
    std::vector<uint16_t> steps;
    std::vector<uint8_t>  codes; // [components, rows + cols]
    double bits  = std::numeric_limits<double>::infinity(); // if no threshold meets the bound
    double error = 0.0;
};

// Finds the largest threshold on a grid whose decoded code meets the bound.
class low_rank_search {
  public:
    low_rank_search(const matrix & state, double norm, double bound) : state(state), norm(norm), bound(bound) {}

    // seeks right singular vectors by one step of subspace iteration from `guess` [cols, rank], or exactly if it is
    // empty; returns whether they span the state well enough
    bool span(const matrix & guess) {
        matrix spanned = state;
        if (!guess.x.empty()) {
            matrix basis = multiply(state, guess).transposed();
            orthonormalize(basis);
            spanned = multiply(basis, state);
        }
        right = right_vectors(spanned);
        left  = multiply(state, right.transposed()).transposed();
        size_t n = 0;
        double captured = 0.0;
        for (; n < right.rows && n < MAX_RANK; n++) {
            const double square = dot(left.row(n), left.row(n), left.cols);
            if (square == 0.0) {
                break;
            }
            captured += square;
        }
        balance(n);
        return captured >= (1.0 - MISSED * MISSED * bound * bound) * norm * norm;
    }

    component_codes run(double floor_bits) {
        const int last = FINEST - COARSEST;
        int coarsest = 0, index;
        while (coarsest < last && count_bits(widths_at(coarsest)) < floor_bits) {
            coarsest++;
        }
        for (index = coarsest; index < last && estimate(index) > bound; index++) {}
        component_codes best;
        while (true) {
            component_codes tried = quantize(widths_at(index));
            if (tried.error <= bound * MARGIN) {
                best = std::move(tried);
                // coarser if the estimate promises another success
                if (index == coarsest || estimate(index - 1) * best.error > bound * MARGIN * estimate(index)) {
                    return best;
                }
                index--;
            } else if (index == last || !std::isinf(best.bits)) {
                return best;
            } else {
                index++;
            }
        }
    }

  private:
    const matrix & state;
    const double norm, bound;
    matrix left, right; // [components, rows], [components, cols]
    std::vector<double> sigma, noise;
    std::vector<float>  largest;

    // scales both rows of a component to the same largest number, and computes the error of rounding to a step of it
    void balance(size_t components) {
        sigma.resize(components);
        noise.resize(components);
        largest.resize(components);
        for (size_t i = 0; i < components; i++) {
            sigma[i] = std::sqrt(dot(left.row(i), left.row(i), left.cols));
            const float of_left = largest_of(left.row(i), left.cols), of_right = largest_of(right.row(i), right.cols);
            const float ratio   = std::sqrt(of_right / of_left);
            multiply_by(ratio, left.row(i), left.cols);
            multiply_by(1.0f / ratio, right.row(i), right.cols);
            largest[i] = std::sqrt(of_left * of_right);
            const double from_left  = double(left.cols) / ratio / ratio;
            const double from_right = double(right.cols) * sigma[i] * ratio * sigma[i] * ratio;
            noise[i] = largest[i] * std::sqrt((from_left + from_right) / 12.0);
        }
    }

    // of the leading components that are worth it
    std::vector<uint8_t> widths_at(int index) const {
        const double threshold = bound * norm * std::exp2(-double(index + COARSEST) / STEPS_PER_OCTAVE);
        std::vector<uint8_t> widths;
        for (size_t i = 0; i < sigma.size() && sigma[i] > 0.7 * threshold; i++) {
            const double bits = std::floor(std::log2(noise[i] / threshold + 1.0) + MIN_WIDTH);
            widths.push_back(uint8_t(std::min(bits, double(MAX_WIDTH))));
        }
        return widths;
    }

    double count_bits(const std::vector<uint8_t> & widths) const {
        double bits = 0.0;
        for (uint8_t width : widths) {
            bits += double(width) * double(state.rows + state.cols) + COMPONENT_BITS;
        }
        return bits;
    }

    // the relative error if rounding errors were independent
    double estimate(int index) const {
        const std::vector<uint8_t> widths = widths_at(index);
        double squares = norm * norm;
        for (size_t i = 0; i < widths.size(); i++) {
            const double rounding = noise[i] / levels(widths[i]);
            squares += rounding * rounding - sigma[i] * sigma[i];
        }
        return std::sqrt(std::max(squares, 0.0)) / norm;
    }

    component_codes quantize(std::vector<uint8_t> widths) const {
        const size_t components = widths.size(), rows = state.rows, cols = state.cols;
        component_codes out;
        out.bits = count_bits(widths);
        out.codes.resize(components * (rows + cols));
        std::vector<float> decoded(components * (rows + cols)); // all left rows, then all right rows
        for (size_t i = 0; i < components; i++) {
            const int limit = levels(widths[i]);
            out.steps.push_back(to_half(largest[i] / float(limit)));
            const float step = from_half(out.steps[i]);
            uint8_t * codes  = &out.codes[i * (rows + cols)];
            round_codes(left.row(i), rows, step > 0.0f ? step : 1.0f, limit, codes);
            round_codes(right.row(i), cols, step > 0.0f ? step : 1.0f, limit, codes + rows);
            expand_codes(codes, rows, -step, limit, &decoded[i * rows]);
            expand_codes(codes + rows, cols, step, limit, &decoded[components * rows + i * cols]);
        }
        std::vector<float> rest(cols);
        double squares = 0.0;
        for (size_t i = 0; i < rows; i++) {
            std::copy(state.row(i), state.row(i) + cols, rest.begin());
            add_rows(rest.data(), decoded.data() + components * rows, cols, decoded.data() + i, rows, components);
            squares += dot(rest.data(), rest.data(), cols);
        }
        out.error  = std::sqrt(squares) / norm;
        out.widths = std::move(widths);
        return out;
    }
};

//
// the dense codes of a head
//

struct dense_codes {
    std::vector<uint16_t> steps; // [rows]
    std::vector<uint8_t>  codes; // [rows, cols]
    double error = 0.0;
};

dense_codes round_rows(const matrix & state, int bits, double norm) {
    dense_codes out;
    out.codes.resize(state.x.size());
    std::vector<float> rest(state.cols);
    const int limit = levels(bits);
    double squares = 0.0;
    for (size_t i = 0; i < state.rows; i++) {
        out.steps.push_back(to_half(largest_of(state.row(i), state.cols) / float(limit)));
        const float step = from_half(out.steps[i]);
        uint8_t * codes  = &out.codes[i * state.cols];
        round_codes(state.row(i), state.cols, step > 0.0f ? step : 1.0f, limit, codes);
        expand_codes(codes, state.cols, step, limit, rest.data());
        const float minus = -1.0f;
        add_rows(rest.data(), state.row(i), state.cols, &minus, 1, 1);
        squares += dot(rest.data(), rest.data(), state.cols);
    }
    out.error = std::sqrt(squares) / norm;
    return out;
}

double bfloat16_error(const matrix & state, double norm) {
    double squares = 0.0;
    for (float x : state.x) {
        const double rest = double(x) - from_bfloat16(to_bfloat16(x));
        squares += rest * rest;
    }
    return std::sqrt(squares) / norm;
}

//
// packing: eight codes share `bits` bytes; they are an eighth of all codes apart, so loops run along memory
//

size_t packed_size(size_t count, int bits) {
    return (count + 7) / 8 * size_t(bits);
}

void pack(std::vector<uint8_t> codes, int bits, std::vector<uint8_t> & out) {
    const size_t words = (codes.size() + 7) / 8, start = out.size();
    codes.resize(8 * words);
    out.resize(start + words * size_t(bits));
    for (int byte = 0; byte < bits; byte++) {
        uint8_t * plane = out.data() + start + size_t(byte) * words;
        for (int part = 0; part < 8; part++) {
            const int shift = part * bits - 8 * byte; // of the code within this byte
            if (shift <= -bits || shift >= 8) {
                continue;
            }
            const uint8_t * from = codes.data() + size_t(part) * words;
            for (size_t i = 0; i < words; i++) {
                plane[i] = uint8_t(plane[i] | (shift >= 0 ? from[i] << shift : from[i] >> -shift));
            }
        }
    }
}

STATE_CODEC_CLONES
void unpack(const uint8_t * packed, size_t count, int bits, std::vector<uint8_t> & codes) {
    const size_t words = (count + 7) / 8;
    codes.resize(8 * words);
    for (int part = 0; part < 8; part++) {
        const int byte = part * bits / 8, shift = part * bits % 8, mask = (1 << bits) - 1;
        const uint8_t * low  = packed + size_t(byte) * words;
        const uint8_t * high = shift + bits > 8 ? low + words : low; // masked away if it is the same
        uint8_t * to = codes.data() + size_t(part) * words;
        for (size_t i = 0; i < words; i++) {
            to[i] = uint8_t(((low[i] | high[i] << 8) >> shift) & mask);
        }
    }
    codes.resize(count);
}

template <typename T>
void append(std::vector<uint8_t> & out, const T * x, size_t n) {
    const size_t start = out.size();
    if (n > 0) {
        out.resize(start + n * sizeof(T));
        memcpy(out.data() + start, x, n * sizeof(T));
    }
}

template <typename T>
void append(std::vector<uint8_t> & out, const std::vector<T> & x) {
    append(out, x.data(), x.size());
}

//
// the codes of many heads
//

// The arrays of a stream, in this order; every size follows from the arrays before it.
struct head_codes {
    std::vector<uint8_t>  modes;     // [heads]
    std::vector<int8_t>   exponents; // [heads]: codes are of the state / 2^exponent; plain states are not
    std::vector<uint8_t>  ranks;     // [heads of low rank]
    std::vector<uint8_t>  widths;    // [components], head by head
    std::vector<uint16_t> steps;     // [components]
    std::array<std::vector<uint8_t>,  MAX_WIDTH + 1> codes;     // by width: [components, rows + cols]
    std::array<std::vector<uint16_t>, MAX_WIDTH + 1> row_steps; // by bits of a dense head: [heads, rows]
    std::array<std::vector<uint8_t>,  MAX_WIDTH + 1> row_codes; // [heads, rows, cols]
    std::vector<uint16_t> bfloat16;
    std::vector<float>    float32;

    std::vector<uint8_t> write() const {
        std::vector<uint8_t> out;
        append(out, modes);
        append(out, exponents);
        append(out, ranks);
        pack(widths, 4, out);
        append(out, steps);
        for (int width = MIN_WIDTH; width <= MAX_WIDTH; width++) {
            pack(codes[width], width, out);
        }
        for (int bits : DENSE) {
            append(out, row_steps[bits]);
            pack(row_codes[bits], bits, out);
        }
        append(out, bfloat16);
        append(out, float32);
        return out;
    }
};

class encoder {
  public:
    encoder(const common_state_shape & shape, float max_error, common_state_codes allowed) :
        shape(shape), max_error(max_error), allowed(allowed) {
        // subspaces of growing rank; small matrices are solved exactly in the end
        const size_t narrow = std::min(shape.rows, shape.cols);
        for (size_t rank : { std::max<size_t>(16, narrow / 8), std::max<size_t>(32, narrow / 3) }) {
            if (rank < narrow) {
                guesses.emplace_back(shape.cols, rank);
            }
        }
        std::mt19937 random(0);
        for (matrix & guess : guesses) {
            for (float & x : guess.x) {
                x = float(random()) / 2147483648.0f - 1.0f;
            }
        }
        if (shape.rows < 96) {
            guesses.emplace_back();
        }
    }

    // appends the cheapest code that meets the bound, and returns its error
    double add(const float * numbers, head_codes & out) const {
        matrix state(shape.rows, shape.cols);
        std::copy(numbers, numbers + state.x.size(), state.x.begin());
        int exponent = 0;
        uint8_t mode = FLOAT32;
        double error = 0.0;
        if (scale(state, exponent)) {
            mode = add_coded(state, numbers, out, error);
        }
        if (mode == FLOAT32) {
            out.float32.insert(out.float32.end(), numbers, numbers + state.x.size());
            exponent = 0;
            error    = 0.0;
        }
        out.modes.push_back(mode);
        out.exponents.push_back(int8_t(exponent));
        return error;
    }

  private:
    const common_state_shape shape;
    const double max_error;
    const common_state_codes allowed;
    std::vector<matrix> guesses;

    // divides by a power of two where float16 steps would not do; false if the state can only be stored as it is
    static bool scale(matrix & state, int & exponent) {
        double squares = 0.0;
        for (float x : state.x) {
            squares += double(x) * x;
        }
        if (!std::isfinite(squares)) { // no float32 number is too large for these sums
            return false;
        }
        const double norm = std::sqrt(squares);
        if (norm == 0.0 || (norm > 0x1p-8 && norm < 0x1p8)) {
            return true;
        }
        std::frexp(largest_of(state.x.data(), state.x.size()), &exponent);
        if (std::abs(exponent) > MAX_EXPONENT) {
            return false;
        }
        multiply_by(std::ldexp(1.0f, -exponent), state.x.data(), state.x.size());
        return true;
    }

    uint8_t add_coded(const matrix & state, const float * numbers, head_codes & out, double & error) const {
        const double numbers_count = double(state.x.size());
        const double norm = std::sqrt(dot(state.x.data(), state.x.data(), state.x.size()));
        component_codes components;
        if (norm == 0.0) {
            components.bits = 0.0; // no components, and no error
        } else if (allowed == COMMON_STATE_CODES_ALL) {
            components = best_components(state, norm);
        }
        for (int bits : DENSE) {
            const bool is_precise = allowed == COMMON_STATE_CODES_ALL || bits == 8;
            if (!is_precise || components.bits <= numbers_count * bits + 16.0 * double(state.rows)) {
                continue;
            }
            const dense_codes dense = round_rows(state, bits, norm);
            if (dense.error <= max_error * MARGIN) {
                out.row_steps[bits].insert(out.row_steps[bits].end(), dense.steps.begin(), dense.steps.end());
                out.row_codes[bits].insert(out.row_codes[bits].end(), dense.codes.begin(), dense.codes.end());
                error = dense.error;
                return uint8_t(bits);
            }
        }
        if (components.bits <= numbers_count * 16.0) {
            add_components(components, out);
            error = components.error;
            return LOW_RANK;
        }
        error = bfloat16_error(state, norm);
        if (error > max_error * MARGIN) {
            return FLOAT32;
        }
        for (size_t i = 0; i < state.x.size(); i++) {
            out.bfloat16.push_back(to_bfloat16(numbers[i]));
        }
        return BFLOAT16;
    }

    component_codes best_components(const matrix & state, double norm) const {
        low_rank_search search(state, norm, max_error);
        for (const matrix & guess : guesses) {
            if (search.span(guess)) {
                return search.run(FLOOR * double(state.x.size()) * 32.0);
            }
        }
        return {};
    }

    void add_components(const component_codes & components, head_codes & out) const {
        const size_t length = shape.rows + shape.cols;
        out.ranks.push_back(uint8_t(components.widths.size()));
        append_all(out.widths, components.widths);
        append_all(out.steps, components.steps);
        for (size_t i = 0; i < components.widths.size(); i++) {
            std::vector<uint8_t> & codes = out.codes[components.widths[i]];
            codes.insert(codes.end(), &components.codes[i * length], &components.codes[i * length] + length);
        }
    }

    template <typename T>
    static void append_all(std::vector<T> & to, const std::vector<T> & from) {
        to.insert(to.end(), from.begin(), from.end());
    }
};

// takes arrays from untrusted bytes one after the other
struct reader {
    const uint8_t * data;
    size_t size;

    template <typename T>
    bool take(size_t count, std::vector<T> & out) {
        if (count > size / sizeof(T)) {
            return false;
        }
        out.resize(count);
        if (count > 0) {
            memcpy(out.data(), data, count * sizeof(T));
        }
        return skip(count * sizeof(T));
    }

    bool take_packed(size_t count, int bits, std::vector<uint8_t> & codes) {
        const size_t bytes = packed_size(count, bits);
        if (bytes > size) {
            return false;
        }
        unpack(data, count, bits, codes);
        return skip(bytes);
    }

    bool take_steps(size_t count, std::vector<uint16_t> & steps) {
        return take(count, steps) &&
            std::all_of(steps.begin(), steps.end(), [](uint16_t step) { return step < 0x7c00; }); // finite, not negative
    }

    bool skip(size_t bytes) {
        data += bytes;
        size -= bytes;
        return true;
    }
};

bool parse(reader from, const common_state_shape & shape, head_codes & out) {
    const size_t numbers = shape.rows * shape.cols, length = shape.rows + shape.cols;
    if (!from.take(shape.heads, out.modes) || !from.take(shape.heads, out.exponents)) {
        return false;
    }
    std::array<size_t, FLOAT32 + 1> of_mode = {};
    for (size_t i = 0; i < shape.heads; i++) {
        const uint8_t mode = out.modes[i];
        const bool is_dense = std::find(DENSE.begin(), DENSE.end(), mode) != DENSE.end();
        if (!is_dense && mode != LOW_RANK && mode != BFLOAT16 && mode != FLOAT32) {
            return false;
        }
        if (std::abs(int(out.exponents[i])) > MAX_EXPONENT) {
            return false;
        }
        of_mode[mode]++;
    }
    if (!from.take(of_mode[LOW_RANK], out.ranks)) {
        return false;
    }
    size_t components = 0;
    for (uint8_t rank : out.ranks) {
        components += rank;
    }
    if (!from.take_packed(components, 4, out.widths) || !from.take_steps(components, out.steps)) {
        return false;
    }
    std::array<size_t, 16> of_width = {};
    for (uint8_t width : out.widths) {
        if (width < MIN_WIDTH || width > MAX_WIDTH) {
            return false;
        }
        of_width[width]++;
    }
    for (int width = MIN_WIDTH; width <= MAX_WIDTH; width++) {
        if (!from.take_packed(of_width[width] * length, width, out.codes[width])) {
            return false;
        }
    }
    for (int bits : DENSE) {
        if (!from.take_steps(of_mode[bits] * shape.rows, out.row_steps[bits]) ||
            !from.take_packed(of_mode[bits] * numbers, bits, out.row_codes[bits])) {
            return false;
        }
    }
    return from.take(of_mode[BFLOAT16] * numbers, out.bfloat16) &&
        from.take(of_mode[FLOAT32] * numbers, out.float32) && from.size == 0;
}

// writes the heads one after the other
class decoder {
  public:
    decoder(const head_codes & heads, const common_state_shape & shape) : heads(heads), shape(shape) {}

    void next(float * state) {
        const uint8_t mode   = heads.modes[head];
        const float   factor = std::ldexp(1.0f, heads.exponents[head]);
        const size_t  count  = shape.rows * shape.cols;
        head++;
        if (mode == LOW_RANK) {
            next_low_rank(state, factor);
        } else if (mode == BFLOAT16) {
            std::transform(&heads.bfloat16[bfloat16], &heads.bfloat16[bfloat16] + count, state, from_bfloat16);
            bfloat16 += count;
        } else if (mode == FLOAT32) {
            std::copy_n(&heads.float32[float32], count, state);
            float32 += count;
        } else {
            for (size_t i = 0; i < shape.rows; i++) {
                const size_t row = rows[mode]++;
                const float step = from_half(heads.row_steps[mode][row]) * factor;
                const uint8_t * codes = &heads.row_codes[mode][row * shape.cols];
                expand_codes(codes, shape.cols, step, levels(mode), state + i * shape.cols);
            }
        }
    }

  private:
    const head_codes & heads;
    const common_state_shape shape;
    size_t head = 0, low_rank = 0, component = 0, bfloat16 = 0, float32 = 0;
    std::array<size_t, MAX_WIDTH + 1> taken = {}, rows = {}; // components of each width; rows of each dense code
    std::vector<float> left, right;

    void next_low_rank(float * state, float factor) {
        const size_t rank = heads.ranks[low_rank++];
        left.resize(rank * shape.rows);
        right.resize(rank * shape.cols);
        for (size_t i = 0; i < rank; i++, component++) {
            const uint8_t width = heads.widths[component];
            const uint8_t * codes = &heads.codes[width][taken[width]++ * (shape.rows + shape.cols)];
            const float step = from_half(heads.steps[component]);
            expand_codes(codes, shape.rows, step * factor, levels(width), &left[i * shape.rows]);
            expand_codes(codes + shape.rows, shape.cols, step, levels(width), &right[i * shape.cols]);
        }
        for (size_t i = 0; i < shape.rows; i++) {
            float * row = state + i * shape.cols;
            std::fill_n(row, shape.cols, 0.0f);
            add_rows(row, right.data(), shape.cols, left.data() + i, shape.rows, rank);
        }
    }
};

bool is_valid(const common_state_shape & shape) {
    const uint64_t head = uint64_t(shape.rows) * shape.cols; // no overflow: both are checked first
    return shape.heads > 0 && shape.rows > 0 && shape.cols > 0 && shape.rows <= MAX_WIDE && shape.cols <= MAX_WIDE &&
        shape.heads <= MAX_NUMBERS / head;
}

} // namespace

std::vector<uint8_t> common_state_encode(
        const float * states, const common_state_shape & shape, float max_error,
        common_state_codes codes, float * worst_error) {
    const encoder encode(shape, max_error, codes);
    head_codes out;
    double worst = 0.0;
    for (size_t i = 0; i < shape.heads; i++) {
        worst = std::max(worst, encode.add(states + i * shape.rows * shape.cols, out));
    }
    if (worst_error) {
        *worst_error = float(worst);
    }
    return out.write();
}

bool common_state_decode(const uint8_t * data, size_t size, const common_state_shape & shape, float * states) {
    head_codes heads;
    if (!is_valid(shape) || !parse({ data, size }, shape, heads)) {
        return false;
    }
    decoder decode(heads, shape);
    for (size_t i = 0; i < shape.heads; i++) {
        decode.next(states + i * shape.rows * shape.cols);
    }
    return true;
}

//
// the state of a sequence
//

namespace {

// Before the coded arrays. The plain bytes are `prefix` bytes (positions and sizes), then for each layer a type, a size
// and a convolution row, and then for each layer a type, a size and the states of all heads.
struct seq_header {
    uint32_t magic   = 0x31637473; // "stc1"
    uint32_t prefix  = 0;
    uint32_t layers  = 0;
    uint32_t heads   = 0;
    uint32_t rows    = 0;
    uint32_t cols    = 0;
    uint32_t conv    = 0; // rows of `cols` numbers in a layer's convolution row
    uint32_t unused  = 0;
    uint64_t conv_bytes = 0; // coded

    common_state_shape states() const { return { size_t(layers) * heads, rows, cols }; }
    common_state_shape convolutions() const { return { layers, conv, cols }; }
};

const int32_t TYPE_FLOAT32 = 0; // GGML_TYPE_F32

struct record {
    int32_t  type = TYPE_FLOAT32;
    uint64_t size = 0;
};

const size_t RECORD_BYTES = sizeof(int32_t) + sizeof(uint64_t);

record read_record(const uint8_t * data) {
    record out;
    memcpy(&out.type, data, sizeof(out.type));
    memcpy(&out.size, data + sizeof(out.type), sizeof(out.size));
    return out;
}

} // namespace

std::vector<uint8_t> common_state_encode_seq(
        const std::vector<uint8_t> & plain, const common_state_shape & layer, float max_error, float * worst_error) {
    // magic, sequence, cells = 1, position, sequences of the cell = 0, transposed = 0, layers
    const size_t prefix = 7 * sizeof(uint32_t);
    const size_t state_bytes = layer.heads * layer.rows * layer.cols * sizeof(float);
    uint32_t words[7] = {};
    if (!is_valid(layer) || plain.size() <= prefix + RECORD_BYTES) {
        return {};
    }
    memcpy(words, plain.data(), prefix);
    if (words[2] != 1 || words[4] != 0 || words[5] != 0) {
        return {};
    }
    const record first = read_record(plain.data() + prefix);
    const uint64_t conv_bytes = first.size;
    if (conv_bytes == 0 || conv_bytes > plain.size() || conv_bytes % (layer.cols * sizeof(float)) != 0) {
        return {};
    }
    const size_t per_layer = 2 * RECORD_BYTES + conv_bytes + state_bytes, layers = (plain.size() - prefix) / per_layer;
    if (layers == 0 || layers > words[6] || layers * per_layer != plain.size() - prefix) {
        return {};
    }
    seq_header header;
    header.prefix = uint32_t(prefix);
    header.layers = uint32_t(layers);
    header.heads  = uint32_t(layer.heads);
    header.rows   = uint32_t(layer.rows);
    header.cols   = uint32_t(layer.cols);
    header.conv   = uint32_t(conv_bytes / (layer.cols * sizeof(float)));
    std::vector<float> convolutions(layers * conv_bytes / sizeof(float)), states(layers * state_bytes / sizeof(float));
    const uint8_t * from = plain.data() + prefix;
    const auto take = [&](std::vector<float> & to, size_t index, size_t bytes) {
        const record found = read_record(from);
        memcpy(to.data() + index * (bytes / sizeof(float)), from + RECORD_BYTES, bytes);
        from += RECORD_BYTES + bytes;
        return found.type == TYPE_FLOAT32 && found.size == bytes;
    };
    for (size_t i = 0; i < layers; i++) {
        if (!take(convolutions, i, conv_bytes)) {
            return {};
        }
    }
    for (size_t i = 0; i < layers; i++) {
        if (!take(states, i, state_bytes)) {
            return {};
        }
    }
    const std::vector<uint8_t> coded_convolutions = common_state_encode(convolutions.data(), header.convolutions(),
            std::min(max_error, float(CONVOLUTION_ERROR)), COMMON_STATE_CODES_PRECISE);
    const std::vector<uint8_t> coded_states =
        common_state_encode(states.data(), header.states(), max_error, COMMON_STATE_CODES_ALL, worst_error);
    header.conv_bytes = coded_convolutions.size();
    std::vector<uint8_t> out;
    append(out, &header, 1);
    append(out, plain.data(), prefix);
    append(out, coded_convolutions);
    append(out, coded_states);
    return out;
}

std::vector<uint8_t> common_state_decode_seq(const std::vector<uint8_t> & coded) {
    seq_header header;
    const uint32_t magic = header.magic;
    if (coded.size() < sizeof(header)) {
        return {};
    }
    memcpy(&header, coded.data(), sizeof(header));
    const size_t rest = coded.size() - sizeof(header);
    if (header.magic != magic || header.prefix > rest || header.conv_bytes > rest - header.prefix) {
        return {};
    }
    if (!is_valid(header.states()) || !is_valid(header.convolutions())) {
        return {};
    }
    const uint8_t * prefix = coded.data() + sizeof(header);
    const uint8_t * convolution_codes = prefix + header.prefix, * state_codes = convolution_codes + header.conv_bytes;
    head_codes convolutions, states;
    if (!parse({ convolution_codes, size_t(header.conv_bytes) }, header.convolutions(), convolutions) ||
        !parse({ state_codes, size_t(coded.data() + coded.size() - state_codes) }, header.states(), states)) {
        return {};
    }
    std::vector<uint8_t> out;
    const size_t conv_numbers = size_t(header.conv) * header.cols, head_numbers = size_t(header.rows) * header.cols;
    const size_t layer_numbers = header.heads * head_numbers;
    out.reserve(header.prefix + header.layers * (2 * RECORD_BYTES + (conv_numbers + layer_numbers) * sizeof(float)));
    append(out, prefix, header.prefix);
    std::vector<float> numbers(std::max(conv_numbers, layer_numbers));
    const auto put = [&](size_t count) {
        const record header_of_row = { TYPE_FLOAT32, count * sizeof(float) };
        append(out, &header_of_row.type, 1);
        append(out, &header_of_row.size, 1);
        append(out, numbers.data(), count);
    };
    decoder next_convolution(convolutions, header.convolutions()), next_state(states, header.states());
    for (size_t i = 0; i < header.layers; i++) {
        next_convolution.next(numbers.data());
        put(conv_numbers);
    }
    for (size_t i = 0; i < header.layers; i++) {
        for (size_t head = 0; head < header.heads; head++) {
            next_state.next(numbers.data() + head * head_numbers);
        }
        put(layer_numbers);
    }
    return out;
}
