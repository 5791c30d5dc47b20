use crate::buffer::Buffer;
use crate::plan::Param;
use crate::recorder::{GpuAct, Recorder};
use crate::shader::{Shader, Variant};
use crate::weights::GpuMatrix;

/// Which pairs of a row and a token [`Recorder::single_logits`] computes.
pub(crate) struct SingleLogits {
    pub count: usize,
    /// Length of the chunks that a draft searches; the pairs are listed without it.
    pub chunk: Option<usize>,
    pub softcap: Option<f32>,
}

impl Recorder<'_> {
    /// Logits of pairs of a row and a token, or of a draft's chunks: `[count, 1]`.
    pub fn single_logits(&mut self, x: &GpuAct, table: &GpuMatrix, pairs: &Buffer, wanted: SingleLogits) -> GpuAct {
        let y = self.act(wanted.count, 1);
        let (workgroup, lanes) = if self.software() { (8, 1) } else { (128, 32) };
        let mut constants = vec![
            ("WORKGROUP", workgroup as u32),
            ("LANES", lanes as u32),
            ("SHARED", u32::from(lanes > 1)),
            ("SEARCH", u32::from(wanted.chunk.is_some())),
        ];
        constants.extend(wanted.chunk.map(|chunk| ("CHUNK", chunk as u32)));
        let groups = wanted.count.div_ceil(workgroup / lanes);
        let across = groups.min(32_768);
        for part in &table.parts {
            self.plan.count_weights(&part.words);
            let [plane1, plane2, plane3] = part.starts;
            let params: [Param; 8] = [
                part.rows.into(),
                table.cols.into(),
                part.first_row.into(),
                plane1.into(),
                plane2.into(),
                plane3.into(),
                wanted.count.into(),
                wanted.softcap.unwrap_or(0.0).into(),
            ];
            let buffers = [&part.words, &x.loan.buffer, pairs, &y.loan.buffer];
            let variant = Variant::of_format(Shader::LabelLogits, part.format, &constants);
            self.plan.dispatch(variant, &params, &buffers, [across, 1, groups.div_ceil(across)]);
        }
        y
    }
}
