"""A vision projector behind checks: image sizes to inputs, pixels to embedding rows.

What becomes of an image (markers around it, how many rows, which positions, how many parts) is mtmd's knowledge of each
model; here it is only written down as inputs. Nothing else of the runner knows models.
"""

import ctypes
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama
import llama_cpp.mtmd_cpp as mtmd
import numpy as np
from numpy.typing import NDArray

from common.errors import BadModelFile, InvalidRequest
from common.image_file import ImageFormat, ImageHeader, read_image_header
from runner.core.sequence.inputs import MediaUnit, join_pieces, unit_key
from runner.core.sequence.media import EncodedImage, EncodedUnit, PreparedImage
from runner.engine.bindings.library import engine_log

MROPE_COMPONENTS = 4
# Their rows depend on what stands before the image in the prompt, so that equal images are not equal inputs.
PLACE_DEPENDENT = frozenset({"deepseek4v", "hunyuanvl"})
# Sides that together find the largest image of every kind of preprocessing: fixed, scaled, cut into tiles.
_PROBED_SIDES = (64, 256, 512, 1024, 2048, 4096)
_GREY = 128


class EncodingFailed(Exception):
    """The projector could not compute."""


class EncodingCancelled(Exception):
    """No sequence waits for the result any more."""


class Projector:
    """One mtmd context. `read` may be called from any thread, `encode` from one at a time."""

    def __init__(self, path: Path, model_pointer: int, *, device: int | None, threads: int) -> None:
        """Load the projector next to its text model, which outlives it.

        Args:
            path: GGUF file.
            model_pointer: the loaded text model.
            device: ggml device that computes images; None: the CPU.
            threads: of the CPU.

        Raises:
            BadModelFile: not a projector, or one of another model.
        """
        engine_log.attach(mtmd.mtmd_helper_log_set)
        engine_log.errors.clear()
        pointer = mtmd.mtmd_init_from_file(str(path).encode(), model_pointer, projector_parameters(device, threads))
        if not pointer:
            reason = "; ".join(line for line in engine_log.errors if line)[-300:] or "no reason given"
            raise BadModelFile(f"{path.name}: {reason}")
        self.pointer: int = pointer
        self.path, self.device = path, device
        self._embedding: int = llama.llama_model_n_embd_inp(model_pointer)
        self.components = MROPE_COMPONENTS if mtmd.mtmd_decode_use_mrope(pointer) else 1
        self.whole: bool = mtmd.mtmd_decode_use_non_causal(pointer, None)
        # The most rows of an image that must be in one call, larger ones are refused; 0 where images may be split.
        self.whole_rows: int | None = None  # not known yet
        if not mtmd.mtmd_support_vision(pointer):
            self.close()
            raise BadModelFile(f"{path.name}: it sees no images")

    def close(self) -> None:
        """Free the context."""
        mtmd.mtmd_free(self.pointer)

    def read(self, data: bytes) -> PreparedImage:
        """Return the inputs that an image file turns into; its pixels are not read.

        Raises:
            InvalidRequest: no image, over a limit, or of a shape that the model cannot take.
        """
        header = read_image_header(data)
        return self._lay_out(data, header, hashlib.sha256(data).digest())

    def encode(
        self, image: PreparedImage, pixels: bytearray, *, cancelled: Callable[[], bool] = lambda: False
    ) -> EncodedImage:
        """Compute the rows of an image.

        Args:
            image: as `read` made it.
            pixels: uint8[height, width, 3].
            cancelled: asked before each part.

        Raises:
            EncodingFailed: out of memory, or the projector's graph cannot be computed.
            EncodingCancelled: `cancelled` said so.
        """
        assert len(pixels) == image.header.width * image.header.height * 3, "pixels"
        units = []
        with self._chunks(image.header, pixels) as chunks:
            parts = [chunk for chunk in chunks if _is_image(chunk)]
            if len(parts) != len(image.units):
                raise EncodingFailed(f"{len(parts)} parts where {len(image.units)} were expected")
            for chunk, unit in zip(parts, image.units, strict=True):
                if cancelled():
                    raise EncodingCancelled
                units.append(self._encode_part(chunk, unit))
        return EncodedImage(units=tuple(units))

    def largest_unit(self) -> int:
        """Return the most rows that any image has in one piece."""
        sizes = [(width, height) for width in _PROBED_SIDES for height in _PROBED_SIDES]
        return max(unit.rows for width, height in sizes for unit in self.lay_out_size(width, height).units)

    def lay_out_size(self, width: int, height: int) -> PreparedImage:
        """Return a grey image without a file, to see what such a size takes."""
        header = ImageHeader(format=ImageFormat.PNG, width=width, height=height)
        return self._lay_out(b"", header, hashlib.sha256(b"%dx%d" % (width, height)).digest())

    def encode_grey(self, image: PreparedImage) -> EncodedImage:
        """Return the rows of an image of `lay_out_size`."""
        return self.encode(image, bytearray([_GREY]) * (image.header.width * image.header.height * 3))

    def _lay_out(self, data: bytes, header: ImageHeader, content_hash: bytes) -> PreparedImage:
        pieces: list[list[int] | MediaUnit] = []
        with self._chunks(header, None) as chunks:
            for chunk in chunks:
                if not _is_image(chunk):
                    pieces.append(_tokens(chunk))
                    continue
                part = sum(isinstance(piece, MediaUnit) for piece in pieces)
                pieces.append(
                    MediaUnit(
                        key=unit_key(content_hash, part),
                        rows=mtmd.mtmd_input_chunk_get_n_tokens(chunk),
                        positions=mtmd.mtmd_input_chunk_get_n_pos(chunk),
                        whole=mtmd.mtmd_decode_use_non_causal(self.pointer, chunk),
                    )
                )
        units, inputs = join_pieces(pieces)
        limit = self.whole_rows
        if limit is not None and any(unit.whole and unit.rows > limit for unit in units):
            raise _too_large(header)
        return PreparedImage(hash=content_hash, data=data, header=header, inputs=inputs, units=units)

    @contextmanager
    def _chunks(self, header: ImageHeader, pixels: bytearray | None) -> Iterator[list[Any]]:
        """Yield the chunks into which mtmd cuts an image; without pixels they have sizes only."""
        data = None
        if pixels is not None:  # mtmd copies them before it returns
            data = (ctypes.c_uint8 * len(pixels)).from_buffer(pixels)
        bitmap = mtmd.mtmd_bitmap_init(header.width, header.height, data)
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            part = mtmd.mtmd_input_part(text=None, bitmap=bitmap)
            parts = (ctypes.POINTER(mtmd.mtmd_input_part) * 1)(ctypes.pointer(part))
            if mtmd.mtmd_tokenize_from_parts(self.pointer, chunks, parts, 1, False):
                raise _too_large(header)
            count = mtmd.mtmd_input_chunks_size(chunks)
            yield [mtmd.mtmd_input_chunks_get(chunks, index) for index in range(count)]
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            mtmd.mtmd_bitmap_free(bitmap)

    def _encode_part(self, chunk: Any, unit: MediaUnit) -> EncodedUnit:
        rows = mtmd.mtmd_input_chunk_get_n_tokens(chunk)
        if rows != unit.rows:
            raise EncodingFailed(f"{rows} rows where {unit.rows} were expected")
        status = mtmd.mtmd_encode_chunk(self.pointer, chunk)
        if status:
            raise EncodingFailed(f"mtmd_encode_chunk returned {status}")
        output = mtmd.mtmd_get_output_embd(self.pointer)
        copied = np.array(np.ctypeslib.as_array(output, (rows, self._embedding)), dtype=np.float32)
        if self.components == 1:
            positions = np.arange(rows, dtype=np.int32).reshape(1, rows)
            return EncodedUnit(rows=copied, positions=positions, moves=np.ones((1, 1), np.int32))
        positions = self._positions(chunk, rows, 0)
        moves = self._positions(chunk, rows, 1)[:, :1] - positions[:, :1]
        return EncodedUnit(rows=copied, positions=positions, moves=moves)

    def _positions(self, chunk: Any, rows: int, start: int) -> NDArray[np.int32]:
        """int32[components, rows] of an image that begins at `start`, in the order that a batch wants."""
        places = (mtmd.mtmd_decoder_pos * rows)()
        mtmd.mtmd_helper_image_get_decoder_pos(mtmd.mtmd_input_chunk_get_tokens_image(chunk), start, places)
        table = np.frombuffer(bytes(places), dtype=np.uint32).reshape(rows, MROPE_COMPONENTS).astype(np.int32)
        time, x, y, other = table.T
        return np.stack([time, y, x, other])


def projector_parameters(device: int | None, threads: int) -> Any:
    """mtmd_context_params. Nothing is computed at creation: the first image is the largest, and sizes the graph."""
    parameters = mtmd.mtmd_context_params_default()
    parameters.use_gpu = device is not None
    if device is not None:
        parameters.device = device
    parameters.n_threads = threads
    parameters.print_timings = False
    parameters.warmup = False
    return parameters


def _is_image(chunk: Any) -> bool:
    return bool(mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE)


def _tokens(chunk: Any) -> list[int]:
    count = ctypes.c_size_t()
    ids = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
    return [ids[index] for index in range(count.value)]


def _too_large(header: ImageHeader) -> InvalidRequest:
    return InvalidRequest(f"the model cannot take an image of {header.width} x {header.height} pixels", param="images")
