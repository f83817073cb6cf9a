"""Records of the log as Arrow columns, and columns of any Arrow library as records.

The memory of batches is reused when their last reader releases it.

Never opens a file, and never needs pyarrow.

Floor: F1.
"""
