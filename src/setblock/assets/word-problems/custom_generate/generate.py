"""Set block decoding: `model.generate(..., custom_generate=CHECKPOINT, trust_remote_code=True)`."""


def generate(*args, **kwargs):  # type: ignore[no-untyped-def]
    """See `setblock.integrations.transformers.generate`."""
    try:
        from setblock.integrations.transformers import generate as generate_in_blocks
    except ModuleNotFoundError as error:
        raise ImportError(
            "decoding this checkpoint in blocks needs the package setblock in this environment"
        ) from error
    return generate_in_blocks(*args, **kwargs)
