//! WGSL sources: which shaders there are, how a variant is put together, and which buffers it binds.
//!
//! A variant is one file of `shaders/` with constants, an optional weight format, and shared pieces before it.
//! `//@each v N` … `//@end` repeats lines with `$v` as 0 .. N (`$vu` as an unsigned literal); `//@if NAME` … `//@else` …
//! `//@end` keeps lines when the constant is not zero. Loops are unrolled here rather than by the driver because some
//! drivers leave small private arrays in memory.

use laneway_files::Format;

/// A shader file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shader {
    /// `linear_rows.wgsl`
    LinearRows,
    /// `linear_lanes.wgsl`
    LinearLanes,
    /// `linear_tiles.wgsl`
    LinearTiles,
    /// `embed.wgsl`
    Embed,
    /// `norm.wgsl`
    Norm,
    /// `add_norm.wgsl`
    AddNorm,
    /// `gate.wgsl`
    Gate,
    /// `rope.wgsl`
    Rope,
    /// `attention.wgsl`
    Attention,
    /// `attention_rows.wgsl`
    AttentionRows,
    /// `route.wgsl`
    Route,
    /// `mix.wgsl`
    Mix,
    /// `gather.wgsl`
    Gather,
    /// `sample_scan.wgsl`
    SampleScan,
    /// `sample_pick.wgsl`
    SamplePick,
    /// `label_logits.wgsl`
    LabelLogits,
    /// `condition.wgsl`
    Condition,
    /// `draft_scan.wgsl`
    DraftScan,
    /// `draft_merge.wgsl`
    DraftMerge,
    /// `draft_pick.wgsl`
    DraftPick,
    /// `draft_weigh.wgsl`
    DraftWeigh,
    /// `soften_rows.wgsl`
    SoftenRows,
    /// `soften_tiles.wgsl`
    SoftenTiles,
    /// `copy_pages.wgsl`
    CopyPages,
    /// `store_kv.wgsl`
    StoreKv,
}

macro_rules! shaders {
    ($($shader:ident => $file:literal),* $(,)?) => {
        impl Shader {
            /// Every shader.
            pub const ALL: &'static [Shader] = &[$(Shader::$shader),*];

            /// File name without its ending.
            pub fn name(self) -> &'static str {
                match self { $(Shader::$shader => $file),* }
            }

            fn text(self) -> &'static str {
                match self { $(Shader::$shader => include_str!(concat!("../../../shaders/", $file, ".wgsl"))),* }
            }
        }
    };
}

shaders! {
    LinearRows => "linear_rows",
    LinearLanes => "linear_lanes",
    LinearTiles => "linear_tiles",
    Embed => "embed",
    Norm => "norm",
    AddNorm => "add_norm",
    Gate => "gate",
    Rope => "rope",
    Attention => "attention",
    AttentionRows => "attention_rows",
    Route => "route",
    Mix => "mix",
    Gather => "gather",
    SampleScan => "sample_scan",
    SamplePick => "sample_pick",
    LabelLogits => "label_logits",
    Condition => "condition",
    DraftScan => "draft_scan",
    DraftMerge => "draft_merge",
    DraftPick => "draft_pick",
    DraftWeigh => "draft_weigh",
    SoftenRows => "soften_rows",
    SoftenTiles => "soften_tiles",
    CopyPages => "copy_pages",
    StoreKv => "store_kv",
}

/// One compiled form of a shader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// The file.
    pub shader: Shader,
    /// Weight format, for shaders that read weights.
    pub format: Option<Format>,
    /// Constants by name.
    pub constants: Vec<(&'static str, u32)>,
}

impl Variant {
    /// A variant without weights.
    pub fn new(shader: Shader, constants: &[(&'static str, u32)]) -> Self {
        Self { shader, format: None, constants: constants.to_vec() }
    }

    /// A variant that reads weights of `format`.
    pub fn of_format(shader: Shader, format: Format, constants: &[(&'static str, u32)]) -> Self {
        Self { shader, format: Some(format), constants: constants.to_vec() }
    }

    /// The complete WGSL text.
    pub fn source(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.constants {
            text += &format!("const {name}: u32 = {value}u;\n");
        }
        for piece in self.pieces() {
            text += piece;
        }
        if let Some(format) = self.format {
            text += include_str!("../../../shaders/unpack.wgsl");
            text += format_text(format);
        }
        text += self.shader.text();
        let mut out = String::new();
        self.expand(&mut text.lines(), true, &mut out);
        out
    }

    /// What the shader shares with others, in the order in which it is declared.
    fn pieces(&self) -> Vec<&'static str> {
        macro_rules! piece {
            ($name:literal) => {
                include_str!(concat!("../../../shaders/", $name, ".wgsl"))
            };
        }
        let mut pieces = match self.shader {
            Shader::Norm | Shader::AddNorm => vec![piece!("reduce")],
            Shader::SampleScan => vec![piece!("softcap"), piece!("score")],
            Shader::SamplePick => vec![piece!("reduce"), piece!("softcap"), piece!("score")],
            Shader::LinearRows | Shader::LinearLanes | Shader::LinearTiles => vec![piece!("linear")],
            Shader::Attention | Shader::AttentionRows => vec![piece!("visible")],
            Shader::LabelLogits | Shader::DraftScan | Shader::DraftPick | Shader::DraftWeigh => {
                vec![piece!("softcap"), piece!("draft")]
            }
            Shader::DraftMerge => vec![piece!("draft")],
            Shader::SoftenRows | Shader::SoftenTiles => vec![piece!("soften")],
            _ => vec![],
        };
        if self.constant("ACTIVATION").is_some() {
            pieces.push(piece!("activation"));
        }
        pieces
    }

    fn constant(&self, name: &str) -> Option<u32> {
        self.constants.iter().find(|c| c.0 == name).map(|c| c.1)
    }

    /// Copies lines up to the `//@end` that belongs to this call's block, or to its `//@else`; true for the latter.
    fn expand<'t>(&self, lines: &mut impl Iterator<Item = &'t str>, keep: bool, out: &mut String) -> bool {
        while let Some(line) = lines.next() {
            let Some(directive) = line.trim_start().strip_prefix("//@") else {
                if keep {
                    out.push_str(line);
                    out.push('\n');
                }
                continue;
            };
            let words: Vec<&str> = directive.split_whitespace().collect();
            match words[..] {
                ["end"] => return false,
                ["else"] => return true,
                ["if", name] => {
                    let holds = self.constant(name).is_some_and(|v| v != 0);
                    if self.expand(lines, keep && holds, out) {
                        self.expand(lines, keep && !holds, out);
                    }
                }
                ["each", variable, count] => {
                    let count = self.constant(count).or_else(|| count.parse().ok()).unwrap_or(0);
                    let mut body = String::new();
                    self.expand(lines, keep, &mut body);
                    for value in 0..count {
                        let unsigned = format!("${variable}u");
                        let plain = format!("${variable}");
                        out.push_str(
                            &body.replace(&unsigned, &format!("{value}u")).replace(&plain, &value.to_string()),
                        );
                    }
                }
                _ => out.push_str(&format!("unknown directive {directive}\n")),
            }
        }
        false
    }
}

fn format_text(format: Format) -> &'static str {
    macro_rules! text {
        ($name:literal) => {
            include_str!(concat!("../../../shaders/formats/", $name, ".wgsl"))
        };
    }
    match format {
        Format::F32 => text!("f32"),
        Format::F16 => text!("f16"),
        Format::BF16 => text!("bf16"),
        Format::Q4_0 => text!("q4_0"),
        Format::Q4_1 => text!("q4_1"),
        Format::Q5_0 => text!("q5_0"),
        Format::Q5_1 => text!("q5_1"),
        Format::Q8_0 => text!("q8_0"),
        Format::Q2K => text!("q2_k"),
        Format::Q3K => text!("q3_k"),
        Format::Q4K => text!("q4_k"),
        Format::Q5K => text!("q5_k"),
        Format::Q6K => text!("q6_k"),
        Format::Iq4Nl => text!("iq4_nl"),
        Format::Iq4Xs => text!("iq4_xs"),
        Format::Mxfp4 => text!("mxfp4"),
        Format::Nvfp4 => text!("nvfp4"),
    }
}
