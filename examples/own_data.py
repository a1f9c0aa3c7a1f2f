"""Fine-tune a model for block decoding on your own texts: here sums, ten steps on the bundled model.

    python examples/own_data.py [MODEL]

`MODEL` is a folder or hub id of any supported causal LM. Ten steps teach nothing. The program shows which part goes where.
"""

import sys
import warnings

import torch

import setblock
from setblock.data import RowDataset, encode_records, unpacked
from setblock.training import SBDConfig, SBDTrainer

# The loss is on the completion, and on the end-of-text that closes it. Chats, with `messages` and `tools`, are records too.
RECORDS = [
    {"prompt": f"Question: What is {a} plus {b}?\nAnswer:", "completion": f" {a} + {b} = {a + b}\n#### {a + b}"}
    for a in range(10, 20)
    for b in range(10, 20)
]


def main() -> None:
    """Load, train, save."""
    # 1. A model. `load` warns of one that was never trained for blocks, which is not a mistake here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        sbd = setblock.load(sys.argv[1] if len(sys.argv) > 1 else "bundled", dtype=torch.float32)
    args = SBDConfig(
        output_dir="runs/own-data",
        logit_shift=True,
        block_sizes=[8, 16],
        max_steps=10,
        learning_rate=1e-5,
        per_device_train_batch_size=8,
        logging_steps=5,
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to="none",
    )

    # 2. Train on a row for each record; the trainer gives the model its mask token, if it has none, and draws the noise
    rows = RowDataset(unpacked(encode_records(sbd.tokenizer, RECORDS)))
    SBDTrainer(sbd, args, train_dataset=rows).train()

    # 3. Save: a folder that `setblock.load`, the command line and plain Transformers all read
    sbd.save(args.output_dir)
    print(f"saved {args.output_dir}")


if __name__ == "__main__":
    main()
