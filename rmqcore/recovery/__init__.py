"""Recovery: brings a store into order when it is opened.

`recovery` holds the order of the steps, `walk` goes over the log, `judge` decides where no good
record is, `queue_check` and `index_check` compare what is derived with the log,
`suspect_index_files` keeps what a crash has left of the index as far as it is right, `geometry`
reads sizes off the files. Never runs beside a writer, and never faces the user.

Floor: F5.
"""
