//! The sampler of canvases against recorded runs, and its rules one by one.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

use laneway_session::canvas::*;
use laneway_session::denoise::Canvas;
use laneway_session::{Drafted, SplitMix64};
use serde_json::Value;

fn trace(name: &str) -> Value {
    let path = format!("{}/../../tests/data/fixtures/{name}/trace.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn tokens(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

fn number(value: &Value) -> f32 {
    value.as_f64().unwrap() as f32
}

fn limits(noise: Noise, denoising: Denoising) -> CanvasLimits {
    CanvasLimits {
        length: 16,
        vocabulary: 512,
        noise,
        context: CanvasContext::Causal,
        shift: false,
        is_conditioned: false,
        pad: 0,
        denoising,
    }
}

/// A draft of which nothing but tokens, entropy and the candidate's probability is known.
fn draft(argmax: u32, sampled: u32, entropy: f32, probability: f32) -> Drafted {
    let logprob = probability.ln();
    Drafted {
        argmax,
        argmax_logprob: logprob,
        second_logprob: logprob - 1.0,
        entropy,
        sampled,
        sampled_logprob: logprob,
    }
}

/// `diffusion_gemma_tiny` as transformers ran it: every temperature, draw, acceptance, canvas and end, and the output.
#[test]
fn uniform_runs_are_replayed_step_by_step() {
    for (name, run) in trace("diffusion_gemma_tiny").as_object().unwrap() {
        let params = &run["params"];
        let denoising = Denoising {
            max_steps: params["max_denoising_steps"].as_u64().unwrap() as u32,
            t_max: number(&params["t_max"]),
            t_min: number(&params["t_min"]),
            selection: Selection::EntropyBound(number(&params["entropy_bound"])),
            stop: Stop::Stable {
                passes: params["stability_threshold"].as_u64().unwrap() as u32,
                entropy: number(&params["confidence_threshold"]),
            },
        };
        let limits = CanvasLimits { is_conditioned: true, ..limits(Noise::Uniform, denoising) };
        let mut rng = SplitMix64::new(run["seed"].as_u64().unwrap());
        let (mut output, mut steps) = (Vec::new(), 0);
        for recorded in run["canvases"].as_array().unwrap() {
            let mut canvas = Canvas::new(denoising, &limits, &[], 16, rng);
            assert_eq!(canvas.tokens(), tokens(&recorded["init"]), "{name}");
            for step in recorded["steps"].as_array().unwrap() {
                assert_eq!(canvas.tokens(), tokens(&step["canvas_in"]));
                assert_eq!(canvas.is_conditioned(), canvas.passes() > 0);
                assert!((canvas.temperature() - number(&step["temperature"])).abs() < 1e-6);
                assert_eq!(canvas.divisor(), canvas.temperature());
                let (places, draws): (Vec<usize>, Vec<f32>) = canvas.ask().into_iter().unzip();
                assert_eq!((places, draws), ((0..16).collect(), floats(&step["u"])));
                let (argmax, sampled) = (tokens(&step["argmax"]), tokens(&step["sampled"]));
                let entropy = floats(&step["entropy"]);
                let drafts: Vec<Drafted> = (0..16).map(|i| draft(argmax[i], sampled[i], entropy[i], 0.5)).collect();
                let finished = canvas.revise(&drafts).unwrap();
                // Positions that were not accepted hold the recorded random tokens.
                let (random, accepted) = (tokens(&step["random"]), tokens(&step["accepted"]));
                let expected: Vec<u32> = (0..16).map(|i| [random[i], sampled[i]][accepted[i] as usize]).collect();
                assert_eq!(canvas.tokens(), expected, "{name} {}", canvas.passes());
                assert_eq!(canvas.tokens(), tokens(&step["canvas_out"]));
                assert_eq!(canvas.likeliest(), argmax);
                assert!((canvas.entropy() - number(&step["mean_entropy"])).abs() < 1e-6);
                let is_last = canvas.passes() == denoising.max_steps;
                assert_eq!(finished, is_last || step["finished"].as_bool().unwrap(), "{name} {}", canvas.passes());
                steps += 1;
            }
            let finals: Vec<u32> = canvas.finals().map(|(token, _)| token).collect();
            output.extend(pads_after_end(&finals, &tokens(&params["eos"]), limits.pad));
            rng = canvas.into_rng();
        }
        assert_eq!(output, tokens(&run["output"]), "{name}");
        assert!(steps > 4);
    }
}

fn pads_after_end(canvas: &[u32], ends: &[u32], pad: u32) -> Vec<u32> {
    let end = canvas.iter().position(|token| ends.contains(token)).map_or(canvas.len(), |end| end + 1);
    (0..canvas.len()).map(|index| if index < end { canvas[index] } else { pad }).collect()
}

/// Replays a masked run; the length of its blocks is that of its canvases.
fn replay_masked(name: &str, run: &Value) {
    let params = &run["params"];
    let mask = params["mask_token_id"].as_u64().unwrap() as u32;
    let temperature = number(&params["temperature"]);
    let length = params["block_length"].as_u64().unwrap() as usize;
    let selection = match params["selection"].as_str().unwrap() {
        "count" => Selection::Schedule(Confidence::Probability),
        _ => Selection::Threshold {
            confidence: Confidence::Probability,
            least: number(&params["threshold"]),
            at_least: params["least"].as_u64().unwrap() as u32,
        },
    };
    let max_steps = params["steps"].as_u64().map_or(length as u32, |steps| steps as u32);
    let denoising = Denoising { max_steps, t_max: temperature, t_min: temperature, selection, stop: Stop::Decided };
    let limits = CanvasLimits { length, ..limits(Noise::Masked { mask }, denoising) };
    let mut rng = SplitMix64::new(run["seed"].as_u64().unwrap_or(0));
    let mut output = Vec::new();
    for block in run["blocks"].as_array().unwrap() {
        let steps = block["steps"].as_array().unwrap();
        let before = tokens(&steps[0]["tokens_in"]);
        let fixed: Vec<u32> = before.iter().copied().take_while(|token| *token != mask).collect();
        let mut canvas = Canvas::new(denoising, &limits, &fixed, length, rng);
        for (index, step) in steps.iter().enumerate() {
            assert_eq!(canvas.tokens(), tokens(&step["tokens_in"]), "{name}");
            assert_eq!(canvas.temperature(), temperature);
            assert_eq!(canvas.divisor(), if temperature > 0.0 { temperature } else { 1.0 });
            let asked = canvas.ask();
            let open = (0..length).filter(|position| canvas.tokens()[*position] == mask);
            assert!(open.eq(asked.iter().map(|(position, _)| *position)));
            let drafts: Vec<Drafted> = asked
                .iter()
                .map(|&(position, draw)| {
                    let drawn = if temperature > 0.0 { number(&step["u"][position]) } else { 0.0 };
                    assert_eq!(draw, drawn);
                    let candidate = step["candidate"][position].as_u64().unwrap() as u32;
                    let other = (candidate + 1) % 511;
                    let probability = number(&step["confidence"][position]);
                    // Which of the two is taken follows from the temperature.
                    let (argmax, sampled) = if temperature > 0.0 { (other, candidate) } else { (candidate, other) };
                    draft(argmax, sampled, 1.0, probability)
                })
                .collect();
            assert_eq!(canvas.revise(&drafts).unwrap(), index + 1 == steps.len(), "{name} {index}");
            assert_eq!(canvas.tokens(), tokens(&step["tokens_out"]), "{name} {index}");
        }
        output.extend(canvas.finals().map(|(token, _)| token));
        rng = canvas.into_rng();
    }
    assert_eq!(output, tokens(&run["output"]), "{name}");
}

#[test]
fn masked_runs_are_replayed_step_by_step() {
    for fixture in ["qwen3_mdlm_tiny", "qwen3_bd3lm_tiny"] {
        for (name, run) in trace(fixture).as_object().unwrap() {
            replay_masked(name, run);
        }
    }
}

const BOUND: Denoising =
    Denoising { max_steps: 4, t_max: 1.0, t_min: 0.0, selection: Selection::EntropyBound(0.5), stop: Stop::Decided };

/// The positions that a masked canvas of 4 decides in its first pass.
fn decided(selection: Selection, drafts: &[Drafted]) -> Vec<usize> {
    let denoising = Denoising { selection, ..BOUND };
    let limits = limits(Noise::Masked { mask: 500 }, denoising);
    let mut canvas = Canvas::new(denoising, &limits, &[], drafts.len(), SplitMix64::new(1));
    canvas.ask();
    canvas.revise(drafts).unwrap();
    (0..drafts.len()).filter(|position| canvas.tokens()[*position] != 500).collect()
}

#[test]
fn positions_are_selected_by_rule_and_on_ties_from_the_left() {
    let drafts = [(0.3, 0.5), (0.2, 0.9), (0.2, 0.9), (0.9, 0.1)].map(|(entropy, p)| draft(7, 8, entropy, p));
    // 0.2, then 0.2 before, then 0.4 before, then 0.7 before.
    assert_eq!(decided(Selection::EntropyBound(0.5), &drafts), [0, 1, 2]);
    assert_eq!(decided(Selection::EntropyBound(0.1), &drafts), [1]);
    assert_eq!(decided(Selection::EntropyBound(-1.0), &drafts), [1]);
    assert_eq!(decided(Selection::EntropyBound(f32::NAN), &drafts), [1]);
    assert_eq!(decided(Selection::EntropyBound(f32::INFINITY), &drafts), [0, 1, 2, 3]);
    assert_eq!(decided(Selection::Schedule(Confidence::Probability), &drafts), [1]);
    let threshold = |confidence, least, at_least| Selection::Threshold { confidence, least, at_least };
    assert_eq!(decided(threshold(Confidence::Probability, 0.4, 1), &drafts), [0, 1, 2]);
    assert_eq!(decided(threshold(Confidence::Probability, 0.95, 0), &drafts), [1]);
    assert_eq!(decided(threshold(Confidence::Probability, 0.95, 3), &drafts), [0, 1, 2]);
    assert_eq!(decided(threshold(Confidence::Entropy, -0.25, 1), &drafts), [1, 2]);
    let margins = [(0.5_f32, 0.4_f32), (0.4, 0.1), (0.6, 0.55), (0.2, 0.1)];
    let margins = margins.map(|(best, second)| Drafted { second_logprob: second.ln(), ..draft(7, 8, 1.0, best) });
    assert_eq!(decided(Selection::Schedule(Confidence::Margin), &margins), [1]);
}

#[test]
fn a_schedule_gives_the_remainder_to_the_first_passes() {
    let denoising = Denoising { selection: Selection::Schedule(Confidence::Probability), max_steps: 4, ..BOUND };
    for (noise, expected) in [(Noise::Masked { mask: 500 }, [2, 4, 5, 6]), (Noise::Uniform, [2, 4, 5, 6])] {
        let mut canvas = Canvas::new(denoising, &limits(noise, denoising), &[], 6, SplitMix64::new(1));
        for expected in expected {
            let asked = canvas.ask();
            let drafts: Vec<Drafted> =
                asked.iter().map(|&(at, _)| draft(511, 511, 1.0, 0.9 - at as f32 / 10.0)).collect();
            canvas.revise(&drafts).unwrap();
            assert_eq!(canvas.tokens().iter().filter(|token| **token == 511).count(), expected, "{noise:?}");
        }
    }
}

/// Nothing undecided is ever told.
#[test]
fn the_last_pass_decides_all_masks() {
    let denoising = Denoising { selection: Selection::EntropyBound(0.0), max_steps: 2, ..BOUND };
    let mut canvas =
        Canvas::new(denoising, &limits(Noise::Masked { mask: 500 }, denoising), &[], 5, SplitMix64::new(1));
    for finished in [false, true] {
        let drafts: Vec<Drafted> = canvas.ask().iter().map(|&(at, _)| draft(at as u32, 9, 1.0, 0.5)).collect();
        assert_eq!(canvas.revise(&drafts).unwrap(), finished);
    }
    assert!(canvas.finals().all(|(token, _)| token != 500));
}

#[test]
fn a_stable_masked_canvas_takes_the_likeliest_tokens_for_what_is_open() {
    let stop = Stop::Stable { passes: 1, entropy: 0.1 };
    let denoising = Denoising { selection: Selection::EntropyBound(-1.0), max_steps: 9, stop, t_max: 0.0, ..BOUND };
    let mut canvas =
        Canvas::new(denoising, &limits(Noise::Masked { mask: 500 }, denoising), &[3], 5, SplitMix64::new(1));
    for finished in [false, true] {
        let drafts: Vec<Drafted> = canvas.ask().iter().map(|&(at, _)| draft(at as u32, 9, 0.05, 0.5)).collect();
        assert_eq!(canvas.revise(&drafts).unwrap(), finished);
    }
    assert_eq!(canvas.tokens(), [3, 1, 2, 3, 4]);
    assert_eq!(canvas.finals().map(|(token, _)| token).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn temperature_0_takes_the_likeliest_token() {
    let denoising = Denoising { t_max: 0.0, max_steps: 2, ..BOUND };
    let mut canvas = Canvas::new(denoising, &limits(Noise::Uniform, denoising), &[], 3, SplitMix64::new(1));
    assert_eq!((canvas.temperature(), canvas.divisor()), (0.0, 1.0));
    canvas.ask();
    canvas.revise(&[draft(5, 6, 0.0, 1.0); 3]).unwrap();
    assert_eq!(canvas.tokens(), [5, 5, 5]);
}

#[test]
fn a_pass_that_is_no_number_is_refused_by_its_count() {
    let good = draft(5, 6, 0.6, 0.5);
    let bad = [
        Drafted { entropy: f32::NAN, ..good },
        Drafted { entropy: f32::INFINITY, ..good },
        Drafted { argmax_logprob: f32::NAN, ..good },
        Drafted { sampled_logprob: f32::NAN, ..good },
        Drafted { argmax: 512, ..good },
        Drafted { sampled: u32::MAX, ..good },
    ];
    for bad in bad {
        let mut canvas = Canvas::new(BOUND, &limits(Noise::Uniform, BOUND), &[], 2, SplitMix64::new(1));
        canvas.ask();
        assert_eq!(canvas.revise(&[good, good]), Ok(false));
        canvas.ask();
        let before = canvas.tokens().to_vec();
        let error = canvas.revise(&[good, bad]).unwrap_err();
        assert!(error.to_string().starts_with("pass 2 over a canvas "), "{error}");
        assert_eq!(canvas.tokens(), before);
    }
    let mut canvas = Canvas::new(BOUND, &limits(Noise::Uniform, BOUND), &[], 2, SplitMix64::new(1));
    assert!(canvas.revise(&[good]).is_err());
}

#[test]
fn any_parameters_have_a_meaning() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, 0.0] {
        let stop = Stop::Stable { passes: u32::MAX, entropy: value };
        let selection = Selection::Threshold { confidence: Confidence::Entropy, least: value, at_least: u32::MAX };
        let denoising = Denoising { max_steps: 0, t_max: value, t_min: value, selection, stop };
        for noise in [Noise::Uniform, Noise::Masked { mask: 500 }] {
            let mut canvas = Canvas::new(denoising, &limits(noise, denoising), &[1, 2, 3], 2, SplitMix64::new(1));
            let count = canvas.ask().len();
            assert!(canvas.divisor() > 0.0 && canvas.divisor().is_finite());
            assert_eq!(canvas.revise(&vec![draft(5, 6, 0.1, 0.5); count]), Ok(true));
        }
    }
}
