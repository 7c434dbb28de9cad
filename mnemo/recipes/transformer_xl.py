"""Transformer-XL (Dai et al., 2019): the published scripts, and models of the paper without a script.

Numbers come from the authors' PyTorch scripts (`run_*.sh`) unless a docstring says otherwise. All of them use Adam with
rate 2.5e-4, clipping at 0.25, a cosine to 0, tied embeddings of the model's width, and an evaluation every 4000 steps
with 10 rows. Validation uses the training context: memory + segment is constant. `test` has the arguments of `eval.py`.
"""

from __future__ import annotations

from dataclasses import replace

from mnemo.memory import XL, Plan
from mnemo.model import InitConfig, ModelConfig
from mnemo.model.embedding import EmbeddingConfig
from mnemo.model.layers import DropoutConfig
from mnemo.model.positions import Learned, Relative
from mnemo.recipes.preset_table import Table
from mnemo.recipes.recipe import DataConfig, EvalConfig, Recipe, ScheduleConfig, TrainConfig

PRESETS = Table()

ENWIK8_SYMBOLS, TEXT8_SYMBOLS = 204, 27
"""enwik8 has 204 symbols in the published convention, which drops newlines: 205 byte values minus one."""
WIKITEXT103_WORDS, LM1B_WORDS = 267_735, 793_471

WIKITEXT103_CUTOFFS = (20_000, 40_000, 200_000)
LM1B_CUTOFFS = (60_000, 100_000, 640_000)
SHARE_ALL_BUT_FIRST = (False, True, True, True)


def everywhere(length: int) -> Plan:
    """Return a plan with the same memory in every layer."""
    return Plan(long=XL(length=length))


def training(*, steps: int, batch: int, segment: int, warmup: int = 0) -> TrainConfig:
    return TrainConfig(
        steps=steps,
        batch=batch,
        segment=segment,
        schedule=ScheduleConfig(warmup=warmup),
        log_every=200,
        eval_every=4000,
        checkpoint_every=4000,
    )


def in_training(segment: int, memory: int, evaluated: int) -> EvalConfig:
    """Return the published validation settings: a shorter segment, and a memory longer by the difference."""
    return EvalConfig(batch=10, segment=evaluated, memory=memory + segment - evaluated)


def character_base(corpus: str, symbols: int) -> Recipe:
    return Recipe(
        model=ModelConfig(
            vocab_size=symbols,
            num_layers=12,
            dim=512,
            num_heads=8,
            head_dim=64,
            inner_dim=2048,
            memory=everywhere(512),
            dropout=DropoutConfig.published(0.1),
        ),
        data=DataConfig(corpus=corpus),
        train=training(steps=400_000, batch=22, segment=512),
        evaluation=in_training(512, 512, 128),
        test=EvalConfig(batch=10, segment=80, memory=2100, clamp=820, same_length=True),
    )


def character_large(corpus: str, symbols: int, warmup: int) -> Recipe:
    return Recipe(
        model=ModelConfig(
            vocab_size=symbols,
            num_layers=24,
            dim=1024,
            num_heads=8,
            head_dim=128,
            inner_dim=3072,
            memory=everywhere(768),
            dropout=DropoutConfig.published(0.15, attention=0.15),
        ),
        data=DataConfig(corpus=corpus),
        train=training(steps=400_000, batch=64, segment=768, warmup=warmup),
        evaluation=in_training(768, 768, 128),
        test=EvalConfig(batch=10, segment=128, memory=3800, clamp=1000, same_length=True),
    )


@PRESETS.add("enwik8-base")
def enwik8_base() -> Recipe:
    """Transformer-XL, enwik8, 12 layers, 41M parameters: 1.06 bpc.

    Table 2; run_enwik8_base.sh. 41,055,436 parameters. 204 symbols: the published corpus has no newlines.
    """
    return character_base("enwik8", ENWIK8_SYMBOLS)


@PRESETS.add("enwik8-18l")
def enwik8_18l() -> Recipe:
    """Transformer-XL, enwik8, 18 layers, 88M parameters: 1.03 bpc.

    Table 2. No script is published. The paper gives depth, size, and the attention lengths 784 (768 in the large
    model's script, used here) and 3800. Our choice: width 640, 10 heads of 64, inner width 2208, which gives 87,965,708
    parameters and suits a GPU. Dropout, warm-up, steps and batch are unknown; those of the large model are used.
    """
    large = character_large("enwik8", ENWIK8_SYMBOLS, warmup=4000)
    return replace(large, model=replace(large.model, num_layers=18, dim=640, num_heads=10, head_dim=64, inner_dim=2208))


@PRESETS.add("enwik8-large")
def enwik8_large() -> Recipe:
    """Transformer-XL, enwik8, 24 layers, 277M parameters: 0.99 bpc.

    Table 2; run_enwik8_large.sh. 277,231,820 parameters. The attention length is 784 in the paper, 768 in the script.
    """
    return character_large("enwik8", ENWIK8_SYMBOLS, warmup=4000)


@PRESETS.add("enwik8-vanilla")
def enwik8_vanilla() -> Recipe:
    """Vanilla transformer, enwik8, 12 layers, 41M parameters: 1.11 bpc (with 44M).

    Table 2's baseline (Al-Rfou et al., 2018): learned absolute positions at every layer, no memory, segments of 512.
    Sizes are those that Al-Rfou et al. and enwik8-base have in common. Training is that of enwik8-base, without Al-Rfou
    et al.'s auxiliary losses and optimizer. They evaluate with a window that slides by one symbol (`mnemo eval
    --sliding-window`).
    """
    base = enwik8_base()
    model = replace(base.model, positions=Learned(length=512), memory=everywhere(0))
    return replace(base, model=model, evaluation=EvalConfig(batch=10), test=EvalConfig(batch=10))


@PRESETS.add("text8-base")
def text8_base() -> Recipe:
    """Transformer-XL, text8, 12 layers, 41M parameters (no published result).

    run_text8_base.sh. 40,964,635 parameters.
    """
    return character_base("text8", TEXT8_SYMBOLS)


@PRESETS.add("text8-large")
def text8_large() -> Recipe:
    """Transformer-XL, text8, 24 layers, 277M parameters: 1.08 bpc.

    The authors' README; run_text8_large.sh, which sets no warm-up, unlike enwik8's. 277,050,395 parameters.
    """
    return character_large("text8", TEXT8_SYMBOLS, warmup=0)


@PRESETS.add("wikitext103-base")
def wikitext103_base() -> Recipe:
    """Transformer-XL, WikiText-103, 16 layers, 151M parameters: 24.0 ppl.

    Table 1; run_wt103_base.sh. 151,107,538 parameters. Adaptive softmax, one width for all bins.
    """
    return Recipe(
        model=ModelConfig(
            vocab_size=WIKITEXT103_WORDS,
            num_layers=16,
            dim=410,
            num_heads=10,
            head_dim=41,
            inner_dim=2100,
            embedding=EmbeddingConfig(cutoffs=WIKITEXT103_CUTOFFS, tie_projections=SHARE_ALL_BUT_FIRST),
            memory=everywhere(150),
            dropout=DropoutConfig.published(0.1),
        ),
        data=DataConfig(corpus="wikitext-103"),
        train=training(steps=200_000, batch=60, segment=150),
        evaluation=in_training(150, 150, 150),
        test=EvalConfig(batch=10, segment=64, memory=640, clamp=400, same_length=True),
    )


@PRESETS.add("wikitext103-large")
def wikitext103_large() -> Recipe:
    """Transformer-XL, WikiText-103, 18 layers, 285M parameters ("257M"): 18.9 ppl, later 18.3.

    Table 1; run_wt103_large.sh. 285,170,506 parameters, though the paper says 257M.
    """
    embedding = EmbeddingConfig(cutoffs=WIKITEXT103_CUTOFFS, div_val=4, tie_projections=SHARE_ALL_BUT_FIRST)
    return Recipe(
        model=ModelConfig(
            vocab_size=WIKITEXT103_WORDS,
            num_layers=18,
            dim=1024,
            num_heads=16,
            head_dim=64,
            inner_dim=4096,
            embedding=embedding,
            memory=everywhere(384),
            dropout=DropoutConfig.published(0.2, attention=0.2),
        ),
        data=DataConfig(corpus="wikitext-103"),
        train=training(steps=4_000_000, batch=128, segment=384, warmup=16_000),
        evaluation=in_training(384, 384, 128),
        test=EvalConfig(batch=10, segment=128, memory=1600, clamp=1000, same_length=True),
    )


def lm1b(model: ModelConfig, train: TrainConfig, test_batch: int) -> Recipe:
    embedding = EmbeddingConfig(cutoffs=LM1B_CUTOFFS, div_val=4)
    return Recipe(
        model=replace(model, vocab_size=LM1B_WORDS, embedding=embedding, memory=everywhere(32)),
        data=DataConfig(corpus="lm1b", order="sentences"),
        train=train,
        evaluation=in_training(32, 32, 32),
        test=EvalConfig(batch=test_batch, segment=32, memory=128, same_length=True),
    )


@PRESETS.add("lm1b-base")
def lm1b_base() -> Recipe:
    """Transformer-XL, One Billion Word, 18 layers, 358M parameters (no published result).

    run_lm1b_base.sh. 357,812,082 parameters. Table 4's model is larger: see lm1b-0.46b.
    """
    model = ModelConfig(num_layers=18, dim=1024, num_heads=8, head_dim=128, inner_dim=4096)
    return lm1b(model, training(steps=500_000, batch=224, segment=32, warmup=20_000), test_batch=64)


@PRESETS.add("lm1b-0.46b")
def lm1b_middle() -> Recipe:
    """Transformer-XL, One Billion Word, 24 layers, 459M parameters: 23.5 ppl.

    Table 4 says 0.46B; neither script has that size, and nothing else is known. Our choice: width and training of the
    base script, depth of the large script, and inner width 4480, which gives 458,539,890 parameters. Dropout 0.05 as in
    the large script.
    """
    model = ModelConfig(
        num_layers=24,
        dim=1024,
        num_heads=8,
        head_dim=128,
        inner_dim=4480,
        dropout=DropoutConfig.published(0.05, attention=0.05),
    )
    return lm1b(model, training(steps=500_000, batch=224, segment=32, warmup=20_000), test_batch=64)


@PRESETS.add("lm1b-large")
def lm1b_large() -> Recipe:
    """Transformer-XL, One Billion Word, 24 layers, 841M parameters: 21.8 ppl.

    The authors' README; run_lm1b_large.sh. 841,295,982 parameters.
    """
    model = ModelConfig(
        num_layers=24,
        dim=1280,
        num_heads=16,
        head_dim=80,
        inner_dim=8192,
        dropout=DropoutConfig.published(0.05, attention=0.05),
    )
    return lm1b(model, training(steps=1_200_000, batch=512, segment=32, warmup=30_000), test_batch=8)


GPU_FLOOR, TPU_FLOOR = 0.004, 0.01
"""Final learning rate of the TensorFlow scripts' cosines, as a share of the peak."""


def tensorflow(recipe: Recipe, *, floor: float, train: TrainConfig | None = None, std: float = 0.02) -> Recipe:
    """Apply the changes of all TensorFlow scripts: the final learning rate and the initialisation."""
    train = train or recipe.train
    schedule = replace(train.schedule, min_lr=floor * train.optimizer.lr)
    init = InitConfig(std=std, projection_std=min(std, InitConfig().projection_std))
    return replace(recipe, model=replace(recipe.model, init=init), train=replace(train, schedule=schedule))


def character_base_tf(recipe: Recipe) -> Recipe:
    return tensorflow(recipe, floor=GPU_FLOOR, train=replace(recipe.train, batch=24))


def character_large_tf(recipe: Recipe) -> Recipe:
    """Apply the changes of the TPU scripts; their evaluation sets neither a clamp nor same_length."""
    train = replace(recipe.train, schedule=ScheduleConfig(warmup=4000))
    test = EvalConfig(batch=16, segment=128, memory=3800)
    return replace(tensorflow(recipe, floor=TPU_FLOOR, train=train), test=test)


def untied(recipe: Recipe) -> Recipe:
    return replace(recipe, model=replace(recipe.model, positions=Relative(biases_per_layer=True)))


def wikitext103_base_tf(recipe: Recipe) -> Recipe:
    """151,119,838 parameters."""
    schedule = ScheduleConfig(warmup=0)
    return untied(tensorflow(recipe, floor=GPU_FLOOR, train=replace(recipe.train, steps=400_000, schedule=schedule)))


def wikitext103_large_tf(recipe: Recipe) -> Recipe:
    """285,205,322 parameters. The TPU code initialises projections with the deviation of all other weights."""
    changed = untied(tensorflow(recipe, floor=TPU_FLOOR, std=0.005))
    return replace(changed, test=replace(recipe.test, batch=8))


for _name, _difference, _base, _change in (
    ("enwik8-base-tf", "enwik8, 12 layers: batch 24", enwik8_base, character_base_tf),
    ("enwik8-large-tf", "enwik8, 24 layers: no clamp when tested", enwik8_large, character_large_tf),
    ("text8-base-tf", "text8, 12 layers: batch 24", text8_base, character_base_tf),
    ("text8-large-tf", "text8, 24 layers: warm-up, no clamp when tested", text8_large, character_large_tf),
    ("wikitext103-base-tf", "WikiText-103, 16 layers: u, v per layer", wikitext103_base, wikitext103_base_tf),
    ("wikitext103-large-tf", "WikiText-103, 18 layers: u, v per layer", wikitext103_large, wikitext103_large_tf),
):
    PRESETS.add_variant(_name, f"The TensorFlow script for {_difference}.", _base, _change)
