"""`python lent_device.py PORT TOTAL_MIB`: lends this machine's CPU as an RPC device that reports so much memory.

llama.cpp takes it for a GPU, so that layouts over several devices are real on a machine without one. The CPU device's
memory query is replaced in this process; nothing limits what is really allocated.
"""

import ctypes
import sys

import llama_cpp.llama_cpp as llama

MIB = 1024 * 1024
GET_MEMORY_SLOT = 2  # of struct ggml_backend_device: get_name, get_description, get_memory, …

GetMemory = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t))


def main() -> None:
    port, total_bytes = int(sys.argv[1]), int(sys.argv[2]) * MIB
    library = llama._lib
    llama.llama_backend_init()
    device_by_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(("ggml_backend_dev_by_type", library))
    device = device_by_type(0)

    def tell(_: int, free: "ctypes._Pointer[ctypes.c_size_t]", total: "ctypes._Pointer[ctypes.c_size_t]") -> None:
        free[0] = total[0] = total_bytes

    get_memory = GetMemory(tell)  # held here for as long as the engine may call it
    slot = device + GET_MEMORY_SLOT * ctypes.sizeof(ctypes.c_void_p)
    ctypes.c_void_p.from_address(slot).value = ctypes.cast(get_memory, ctypes.c_void_p).value
    serve = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)(
        ("ggml_backend_rpc_start_server", library)
    )
    serve(f"127.0.0.1:{port}".encode(), None, 1, 1, (ctypes.c_void_p * 1)(device))


if __name__ == "__main__":
    main()
