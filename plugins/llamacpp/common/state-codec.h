// Recurrent states in fewer bytes, each head within a relative error that is measured on what will be decoded.
//
// A head takes the cheapest code that meets the bound: components of low rank with 3 to 8 bits a number, all numbers
// in 4, 5, 6 or 8 bits with a step per row, bfloat16, or float32. A head that holds numbers that are not finite is
// stored in float32.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// states of `heads` matrices, row by row; in low-rank codes a component is a column and a row
struct common_state_shape {
    size_t heads;
    size_t rows;
    size_t cols;
};

enum common_state_codes {
    COMMON_STATE_CODES_ALL,
    COMMON_STATE_CODES_PRECISE, // 8 bits, bfloat16 or float32
};

// |decoded - state| <= max_error * |state| for every head, in the Frobenius norm; worst_error: the largest of them
std::vector<uint8_t> common_state_encode(
        const float * states, const common_state_shape & shape, float max_error,
        common_state_codes codes = COMMON_STATE_CODES_ALL, float * worst_error = nullptr);

// false if the bytes are no code of states of this shape; checks everything before it writes
bool common_state_decode(const uint8_t * data, size_t size, const common_state_shape & shape, float * states);

// The state of one sequence of a recurrent or hybrid model, as llama_state_seq_get_data_ext() writes it with
// LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: `layer` is the shape of one layer's states, and convolution rows take 8 bits a
// number. Empty if the bytes are not laid out like that.
std::vector<uint8_t> common_state_encode_seq(
        const std::vector<uint8_t> & plain, const common_state_shape & layer, float max_error, float * worst_error);

// empty if the bytes are no coded state
std::vector<uint8_t> common_state_decode_seq(const std::vector<uint8_t> & coded);
