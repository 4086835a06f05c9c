//! Typed memory on a device.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bilin_core::shape::layout::checked_numel;
use bilin_core::{DType, Element, Error, OpName, Result, shape_text};

use super::device::GpuDevice;
use super::pool::Shelves;

/// Bytes that the host copies at a time start and end on multiples of this.
const WORD: u64 = 4;
/// Sizes of memory are multiples of this, so that kernels may read whole vectors.
const ROUND: u64 = 16;
/// After the queue is idle, how long a mapped buffer's callback may still take on the thread that runs it.
const CALLBACK_PATIENCE: Duration = Duration::from_secs(30);

/// A piece of device memory, given back when the last view of it goes.
pub(crate) struct Memory {
    pub id: u64,
    pub device: GpuDevice,
    pub raw: wgpu::Buffer,
    pub byte_len: u64,
    pub home: Weak<Shelves>,
}

impl Memory {
    pub(crate) fn alloc(op: &OpName, device: &GpuDevice, byte_len: u64) -> Result<Memory> {
        let limit = device.0.limits.max_buffer_size;
        let rounded = byte_len.max(1).checked_next_multiple_of(ROUND).filter(|&b| b <= limit);
        let Some(byte_len) = rounded else {
            let want = format!("want at most {limit}, the most that {} holds in one buffer", device.name());
            return Err(Error::invalid(op.clone(), "byte_len", byte_len, want));
        };
        let raw = device.scoped(op, || {
            device.0.raw.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: byte_len,
                usage: wgpu::BufferUsages::STORAGE
                    | wgpu::BufferUsages::UNIFORM
                    | wgpu::BufferUsages::COPY_SRC
                    | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        });
        let raw = raw.map_err(|e| if matches!(e, Error::OutOfMemory { .. }) { device.out_of_memory(byte_len) } else { e })?;
        Ok(Memory::around(device, raw, byte_len, Weak::new()))
    }

    pub(crate) fn around(device: &GpuDevice, raw: wgpu::Buffer, byte_len: u64, home: Weak<Shelves>) -> Memory {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let counts = &device.0.counts;
        let now = counts.current_bytes.fetch_add(byte_len, Relaxed) + byte_len;
        counts.peak_bytes.fetch_max(now, Relaxed);
        Memory { id: NEXT.fetch_add(1, Relaxed), device: device.clone(), raw, byte_len, home }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.device.0.counts.current_bytes.fetch_sub(self.byte_len, Relaxed);
        if let Some(home) = self.home.upgrade() {
            home.put(self.raw.clone(), self.byte_len);
        }
    }
}

/// Typed, row-major memory on a [`GpuDevice`], or a view of a part of it. Clones are the same memory.
///
/// Host reads and writes take their place in the queue: a read sees every kernel committed before it, and no kernel
/// committed before a write sees the write.
#[derive(Clone)]
pub struct GpuBuffer {
    pub(crate) memory: Arc<Memory>,
    offset: u64,
    byte_len: u64,
    dtype: DType,
    shape: Vec<usize>,
}

impl std::fmt::Debug for GpuBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = self.offset + self.byte_len;
        write!(f, "GpuBuffer({} {}, bytes {}..{end} of {})", self.dtype, shape_text(&self.shape), self.offset, self.memory.id)
    }
}

impl GpuBuffer {
    pub(crate) fn alloc(device: &GpuDevice, byte_len: usize, dtype: DType, shape: &[usize]) -> Result<GpuBuffer> {
        let op = OpName::from("alloc_buffer");
        GpuBuffer::check_room(&op, byte_len as u64, dtype, shape)?;
        let memory = Memory::alloc(&op, device, byte_len as u64)?;
        Ok(GpuBuffer::over(Arc::new(memory), byte_len as u64, dtype, shape))
    }

    pub(crate) fn check_room(op: &OpName, byte_len: u64, dtype: DType, shape: &[usize]) -> Result<()> {
        let need = (checked_numel(op, shape, dtype)? * dtype.size_bytes()) as u64;
        if need > byte_len {
            let want = format!("want at least {need}, for shape {} of {dtype}", shape_text(shape));
            return Err(Error::invalid(op.clone(), "byte_len", byte_len, want));
        }
        Ok(())
    }

    pub(crate) fn over(memory: Arc<Memory>, byte_len: u64, dtype: DType, shape: &[usize]) -> GpuBuffer {
        GpuBuffer { memory, offset: 0, byte_len, dtype, shape: shape.to_vec() }
    }

    /// The device it lives on.
    pub fn device(&self) -> &GpuDevice {
        &self.memory.device
    }

    /// Type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Lengths of its axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements of its shape.
    pub fn element_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes it was asked for; at least what its elements take.
    pub fn byte_len(&self) -> usize {
        self.byte_len as usize
    }

    /// Bytes of the memory that this view covers.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.byte_len
    }

    /// The elements of `shape` from `byte_offset` on, in the same memory.
    ///
    /// Errors: `InvalidArgument` where they reach beyond this view, or where the offset isn't a multiple of 4 and of the
    /// element's size. A kernel can bind the view where its offset is a multiple of the device's alignment, too.
    pub fn slice_view(&self, byte_offset: usize, shape: impl AsRef<[usize]>) -> Result<GpuBuffer> {
        let (op, shape) = (OpName::from("slice_view"), shape.as_ref());
        let size = self.dtype.size_bytes();
        let bytes = checked_numel(&op, shape, self.dtype)? * size;
        if !byte_offset.is_multiple_of(size.max(WORD as usize)) {
            let want = format!("want a multiple of {}", size.max(WORD as usize));
            return Err(Error::invalid(op, "byte_offset", byte_offset, want));
        }
        if byte_offset.checked_add(bytes).is_none_or(|end| end as u64 > self.byte_len) {
            let want = format!("want {bytes} bytes from there inside the {} of this buffer", self.byte_len);
            return Err(Error::invalid(op, "byte_offset", byte_offset, want));
        }
        Ok(self.window(byte_offset as u64, bytes as u64, shape))
    }

    /// A view that the caller has checked.
    pub(crate) fn window(&self, byte_offset: u64, byte_len: u64, shape: &[usize]) -> GpuBuffer {
        let memory = Arc::clone(&self.memory);
        GpuBuffer { memory, offset: self.offset + byte_offset, byte_len, dtype: self.dtype, shape: shape.to_vec() }
    }

    fn check_element<T: Element>(&self, op: &OpName) -> Result<()> {
        if T::DTYPE == self.dtype {
            return Ok(());
        }
        Err(Error::DtypeMismatch { op: op.clone(), dtypes: vec![self.dtype, T::DTYPE], remedy: "use the buffer's own dtype" })
    }

    /// Puts `values` at the start.
    ///
    /// Errors: `DtypeMismatch`, `InvalidArgument` where there are more than [`element_count`](Self::element_count),
    /// `DeviceLost`.
    ///
    /// ```
    /// # use bilin_core::DType;
    /// let device = bilin_gpu::GpuDevice::new()?;
    /// let x = device.alloc_buffer(12, DType::F32, [3])?;
    /// x.write(&[1f32, 2.])?;
    /// assert_eq!(x.read::<f32>()?, [1., 2., 0.]);
    /// # Ok::<(), bilin_core::Error>(())
    /// ```
    pub fn write<T: Element>(&self, values: &[T]) -> Result<()> {
        let op = OpName::from("write");
        self.check_element::<T>(&op)?;
        if values.len() > self.element_count() {
            let want = format!("want at most {}, the buffer's", self.element_count());
            return Err(Error::invalid(op, "values", format!("{} elements", values.len()), want));
        }
        let reprs: Vec<T::Repr> = values.iter().map(|v| v.to_repr()).collect();
        self.write_bytes(bytemuck::cast_slice(&reprs))
    }

    /// Puts bytes at the start. Errors: `InvalidArgument` where there are more than
    /// [`byte_len`](Self::byte_len), `DeviceLost`.
    pub fn write_bytes(&self, bytes: &[u8]) -> Result<()> {
        let op = OpName::from("write");
        if bytes.len() as u64 > self.byte_len {
            return Err(Error::invalid(op, "bytes", format!("{} bytes", bytes.len()), format!("the buffer has {}", self.byte_len)));
        }
        let whole = bytes.len() - bytes.len() % WORD as usize;
        let (body, tail) = bytes.split_at(whole);
        let mut last = Vec::new();
        if !tail.is_empty() {
            // The rest of the last word may belong to a neighbour.
            let at = self.offset + whole as u64;
            last = self.download(&op, at..at + WORD)?;
            last[..tail.len()].copy_from_slice(tail);
        }
        let device = self.device();
        device.scoped(&op, || {
            if !body.is_empty() {
                device.0.queue.write_buffer(&self.memory.raw, self.offset, body);
            }
            if !last.is_empty() {
                device.0.queue.write_buffer(&self.memory.raw, self.offset + whole as u64, &last);
            }
        })
    }

    /// All elements, after everything committed before. Errors: `DtypeMismatch`, `DeviceLost`, `OutOfMemory`.
    pub fn read<T: Element>(&self) -> Result<Vec<T>> {
        self.check_element::<T>(&"read".into())?;
        let mut reprs = vec![<T::Repr as bytemuck::Zeroable>::zeroed(); self.element_count()];
        self.read_bytes(bytemuck::cast_slice_mut(&mut reprs))?;
        Ok(reprs.into_iter().map(T::from_repr).collect())
    }

    /// The first `into.len()` bytes. Errors: `InvalidArgument` where there are fewer, `DeviceLost`, `OutOfMemory`.
    pub fn read_bytes(&self, into: &mut [u8]) -> Result<()> {
        let op = OpName::from("read");
        let len = into.len() as u64;
        if len > self.byte_len {
            return Err(Error::invalid(op, "bytes", format!("{len} bytes"), format!("the buffer has {}", self.byte_len)));
        }
        if len > 0 {
            let end = (self.offset + len).next_multiple_of(WORD);
            into.copy_from_slice(&self.download(&op, self.offset..end)?[..into.len()]);
        }
        Ok(())
    }

    /// Bytes of the memory; both ends are multiples of a word.
    fn download(&self, op: &OpName, bytes: Range<u64>) -> Result<Vec<u8>> {
        let (device, size) = (self.device(), bytes.end - bytes.start);
        let inner = &device.0;
        let (sender, receiver) = mpsc::channel();
        let staging = device.scoped(op, || {
            let staging = inner.raw.create_buffer(&wgpu::BufferDescriptor {
                label: Some("read"),
                size,
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            });
            let mut encoder = inner.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.copy_buffer_to_buffer(&self.memory.raw, bytes.start, &staging, 0, size);
            inner.queue.submit([encoder.finish()]);
            staging.map_async(wgpu::MapMode::Read, .., move |outcome| {
                // The receiver lives as long as this function waits.
                let _ = sender.send(outcome);
            });
            staging
        })?;
        device.wait()?;
        let failed = |message: String| Error::DeviceLost { device: device.name().to_owned(), message };
        // Another thread that polls this device may have taken the callback and be about to run it.
        match receiver.recv_timeout(CALLBACK_PATIENCE) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return Err(failed(e.to_string())),
            Err(e) => return Err(failed(e.to_string())),
        }
        let view = staging.get_mapped_range(..).map_err(|e| failed(e.to_string()))?;
        Ok(view.to_vec())
    }
}
