//! A transformer: blocks of attention with grouped heads and of a two-layer network, each behind a layer norm.
//!
//! Sources: Vaswani et al., "Attention is all you need", 2017; Ainslie et al., "GQA: training generalized multi-query
//! transformer models from multi-head checkpoints", 2023.

use bilin::prelude::*;

/// Lengths of a model.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Blocks.
    pub blocks: usize,
    /// Features of a character.
    pub width: usize,
    /// Heads that ask.
    pub heads: usize,
    /// Heads that answer; each serves `heads / groups` of those that ask.
    pub groups: usize,
    /// Most characters that it looks back.
    pub context: usize,
}

/// A layer norm's scale and shift.
type Norm = (Tensor, Tensor);

#[derive(Debug)]
struct Block {
    before_attention: Norm,
    /// (width, groups·(heads/groups)·length), (width, groups·length) twice, (width, width).
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mix: Tensor,
    before_network: Norm,
    /// (width, 4·width) and back.
    widen: Tensor,
    narrow: Tensor,
}

/// Characters in, logits of the next character out.
#[derive(Debug)]
pub struct Model {
    shape: Shape,
    /// (characters, width) and (context, width).
    embedding: Tensor,
    positions: Tensor,
    blocks: Vec<Block>,
    last: Norm,
    /// (width, characters).
    logits: Tensor,
    parameters: Vec<Tensor>,
}

/// Parameters as they are made.
struct Maker<'a> {
    rng: &'a mut Rng,
    device: &'a Device,
    all: Vec<Tensor>,
}

impl Maker<'_> {
    fn keep(&mut self, t: Tensor) -> Result<Tensor> {
        let leaf = t.requires_grad_(true)?;
        self.all.push(leaf.clone());
        Ok(leaf)
    }
    /// Normal numbers of variance 1/`inputs`.
    fn normal(&mut self, shape: [usize; 2], inputs: usize) -> Result<Tensor> {
        let t = Tensor::randn(shape, DType::F32, self.device, self.rng)?.mul_scalar((inputs as f64).sqrt().recip())?;
        self.keep(t)
    }
    fn norm(&mut self, width: usize) -> Result<Norm> {
        let scale = self.keep(Tensor::ones([width], DType::F32, self.device)?)?;
        Ok((scale, self.keep(Tensor::zeros([width], DType::F32, self.device)?)?))
    }
}

fn normed(x: &Tensor, (scale, shift): &Norm) -> Result<Tensor> {
    x.layer_norm(scale.shape(), Some(scale), Some(shift), 1e-5)
}

impl Block {
    fn new(make: &mut Maker<'_>, shape: &Shape) -> Result<Block> {
        let Shape { width, heads, groups, .. } = *shape;
        let length = width / heads;
        Ok(Block {
            before_attention: make.norm(width)?,
            query: make.normal([width, width], width)?,
            key: make.normal([width, groups * length], width)?,
            value: make.normal([width, groups * length], width)?,
            mix: make.normal([width, width], width)?,
            before_network: make.norm(width)?,
            widen: make.normal([width, 4 * width], width)?,
            narrow: make.normal([4 * width, width], 4 * width)?,
        })
    }

    /// (B, T, width) → (B, T, width). Axes: b batch, t place that asks, s place that answers, g group, r head of a group, d
    /// feature.
    fn attend(&self, x: &Tensor, shape: &Shape) -> Result<Tensor> {
        let &[batch, time, width] = x.shape() else { return Err(Error::invalid("attend", "x", x.rank(), "want rank 3")) };
        let (groups, length) = (shape.groups, shape.width / shape.heads);
        let answers = [batch, time, groups, length];
        let query = x.matmul(&self.query)?.mul_scalar((length as f64).sqrt().recip())?;
        let query = query.reshape([batch, time, groups, shape.heads / groups, length])?;
        let (key, value) = (x.matmul(&self.key)?.reshape(answers)?, x.matmul(&self.value)?.reshape(answers)?);
        let scores = einsum("btgrd,bsgd->bgrts", &[&query, &key])?;
        let place = Tensor::arange(0.0, time as f64, 1.0, DType::I64, x.device())?;
        let has_been = place.unsqueeze(1)?.ge(&place)?;
        let weights = has_been.where_(&scores, &scores.scalar_like(f64::NEG_INFINITY)?)?.softmax(-1)?;
        let out = einsum("bgrts,bsgd->btgrd", &[&weights, &value])?;
        out.reshape([batch, time, width])?.matmul(&self.mix)
    }

    fn forward(&self, x: &Tensor, shape: &Shape) -> Result<Tensor> {
        let x = x.add(&self.attend(&normed(x, &self.before_attention)?, shape)?)?;
        let hidden = normed(&x, &self.before_network)?.matmul(&self.widen)?.gelu()?;
        x.add(&hidden.matmul(&self.narrow)?)
    }
}

impl Model {
    /// Random weights for an alphabet of `characters`.
    pub fn new(shape: Shape, characters: usize, rng: &mut Rng, device: &Device) -> Result<Model> {
        let mut make = Maker { rng, device, all: Vec::new() };
        // Characters and places add up, so half the variance each.
        let embedding = make.normal([characters, shape.width], 2)?;
        let positions = make.normal([shape.context, shape.width], 2)?;
        let blocks = (0..shape.blocks).map(|_| Block::new(&mut make, &shape)).collect::<Result<_>>()?;
        let last = make.norm(shape.width)?;
        let logits = make.normal([shape.width, characters], shape.width)?;
        Ok(Model { shape, embedding, positions, blocks, last, logits, parameters: make.all })
    }

    /// What an optimiser changes.
    pub fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    /// (B, T) numbers of characters → (B, T, characters): the greater, the likelier the next one. T is at most the context.
    pub fn logits(&self, text: &Tensor) -> Result<Tensor> {
        let &[batch, time] = text.shape() else { return Err(Error::invalid("logits", "text", text.rank(), "want rank 2")) };
        let characters = self.embedding.index_select(0, &text.reshape([batch * time])?)?;
        let mut x = characters.reshape([batch, time, self.shape.width])?.add(&self.positions.narrow(0, 0, time)?)?;
        for block in &self.blocks {
            x = block.forward(&x, &self.shape)?;
        }
        normed(&x, &self.last)?.matmul(&self.logits)
    }

    /// Mean of −ln p(next character).
    pub fn loss(&self, text: &Tensor, next: &Tensor) -> Result<Tensor> {
        let logits = self.logits(text)?;
        logits.reshape([next.numel(), logits.shape()[2]])?.cross_entropy(&next.reshape([next.numel()])?)
    }
}
