"""Writing the log: appending at its tail, numbering messages by queue, group commit, `put` itself.

Never decides when to roll, flush or stop.

Floor: F1.
"""
