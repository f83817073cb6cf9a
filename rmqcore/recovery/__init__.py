"""Recovery: brings a store into order when it is opened.

`recovery` holds the order of the steps, `walk` goes over the log, `judge` decides where no good
record is, `queue_check` and `index_check` hold what is derived against the log, `index_left` takes
over what a crash has left of the index, `geometry` tells sizes. Never runs beside a writer, and
never faces the user.

Floor: F5.
"""
