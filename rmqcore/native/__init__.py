"""The native code, in rooms by what the bytes are for; `_codec` and `_index` are its faces.

Kernels take pointers with their lengths and answer with a status; Python decides what follows.
"""
