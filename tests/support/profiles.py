"""A small profile."""

from lmms_eval_mai.profiles.profile import BatchPoint, DecodingPoint, ImagePoint, Profile, Seconds, TtftPoint

TINY = Profile(
    name="tiny",
    model="/models/tiny",
    device="A CPU (2 cores)",
    engine="vllm",
    dtype="float32",
    versions={"torch": "2.13"},
    settings={"repeats": 3},
    preprocessing=(ImagePoint(64, 4, Seconds(0.001)),),
    vision=(ImagePoint(64, 4, Seconds(0.002, 0.002, 0.0, 0.002, 0.002, 3)),),
    ttft=(TtftPoint(64, 4, 60, Seconds(0.01)),),
    decoding=(DecodingPoint(64, 4, 60, 8, Seconds(0.08)),),
    batches=(BatchPoint(8, 64, 4, 60, 16, Seconds(0.05), Seconds(0.35)),),
)
