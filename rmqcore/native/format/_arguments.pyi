# Whole numbers of a caller's; used from native code only.
