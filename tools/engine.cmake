# Included behind project() of llama-cpp-python (CMAKE_PROJECT_llama_cpp_INCLUDE), which always turns llama.cpp's common
# library on. No library that Puna loads is linked against it, and it takes a third of the build.
set(LLAMA_BUILD_COMMON OFF)
