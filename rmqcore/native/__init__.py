"""The native code (Cython), one room for each thing that is done with bytes.

Kernels take pointers with their lengths and answer with a status. They never decide what follows:
that is Python's. Python reaches records and index entries through `rmqcore._codec` and
`rmqcore._index`.

Floor: F0 and F1; each room says which.
"""
