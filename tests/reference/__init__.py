"""The oracle: the store's formats in plain, slow Python, written from docs/format/.

It shares no code with the engine, is not shipped, and prefers the obvious to the fast. The property
tests hold the native code against it: same results, and the same refusals.
"""
