"""The files of a store: one class a file kind, each knows its own format and no other's."""
