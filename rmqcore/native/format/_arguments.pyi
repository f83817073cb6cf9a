# Conversion of integer arguments; used from native code only.
