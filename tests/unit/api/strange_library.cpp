// A library that is no CUDA backend.

extern "C" int strange() { return 1; }
