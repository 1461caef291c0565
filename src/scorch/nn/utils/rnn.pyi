"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.nn.utils.rnn import (
    PackedSequence as PackedSequence,
    PackedSequence_ as PackedSequence_,
    Tensor as Tensor,
    bind as bind,
    copy_method_params as copy_method_params,
    invert_permutation as invert_permutation,
    pack_padded_sequence as pack_padded_sequence,
    pack_sequence as pack_sequence,
    pad_packed_sequence as pad_packed_sequence,
    pad_sequence as pad_sequence,
    torch as torch,
    unpack_sequence as unpack_sequence,
    unpad_sequence as unpad_sequence,
)
