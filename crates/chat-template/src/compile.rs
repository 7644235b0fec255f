//! Compiles templates to programs that charge a budget.
//!
//! The engine limits steps, but not the size of their results. The program is therefore rewritten:
//! operators that create or compare values become calls of [`operators`](super::operators), which
//! charge the budget, and raw text is emitted like a value, which is charged too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use minijinja::machinery::{CodeGenerator, Instruction, Instructions, Token, parse, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind, Value};

use super::operators::{CHECK, HELD, operator};

/// Maximum length of a template, in bytes.
const MAX_SOURCE: usize = 512 << 10;
/// Maximum length of a text that a constant expression repeats, in bytes.
const MAX_CONSTANT: i128 = 4_096;

/// The program of a template.
pub(super) struct Program {
    pub instructions: Instructions<'static>,
    pub(super) blocks: BTreeMap<&'static str, Instructions<'static>>,
    pub source: &'static str,
}

impl Program {
    /// Compiles a template.
    ///
    /// # Errors
    /// If the template is malformed or too long.
    pub(crate) fn of(source: String) -> Result<Self, Error> {
        if MAX_SOURCE < source.len() {
            let told = format!("the template exceeds {MAX_SOURCE} bytes");
            return Err(Error::new(ErrorKind::SyntaxError, told));
        }
        // The settings of Hugging Face Transformers.
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?;
        let source = kept(source);
        constants(source, &syntax)?;
        let template = parse(source, "chat", syntax)?;
        let mut generator = CodeGenerator::new("chat", source);
        generator.compile_stmt(&template);
        let (instructions, blocks) = generator.finish();
        let blocks = blocks.into_iter();
        Ok(Self {
            instructions: charged(&instructions),
            blocks: blocks
                .map(|(name, block)| (name, charged(&block)))
                .collect(),
            source,
        })
    }
}

/// Interns a source for the lifetime of the process, because programs borrow it, and a process
/// loads few templates.
fn kept(source: String) -> &'static str {
    static SOURCES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut sources = match SOURCES.lock() {
        Ok(sources) => sources,
        Err(poisoned) => poisoned.into_inner(),
    };
    if let Some(source) = sources.get(source.as_str()) {
        return source;
    }
    let source = &*Box::leak(source.into_boxed_str());
    sources.insert(source);
    source
}

/// Rejects large constant expressions, because the compiler evaluates them without a budget.
fn constants(source: &str, syntax: &SyntaxConfig) -> Result<(), Error> {
    // Per pair of braces: the product of all numbers, whether there is a multiplication, and the
    // length of texts.
    let (mut product, mut multiplies, mut texts) = (1_i128, false, 0_i128);
    for token in tokenize(source, false, syntax.clone()) {
        match token?.0 {
            Token::VariableStart | Token::BlockStart => {
                (product, multiplies, texts) = (1, false, 0);
            }
            Token::Int(number) => {
                product = product.saturating_mul(i128::from(number).max(1));
            }
            Token::Int128(_) | Token::Pow => product = i128::MAX,
            Token::Str(text) => texts += text.len() as i128,
            Token::String(text) => texts += text.len() as i128,
            Token::Mul => multiplies = true,
            _ => {}
        }
        if multiplies && 0 < texts && MAX_CONSTANT < product.saturating_mul(texts) {
            let told = format!("a constant expression repeats a text beyond {MAX_CONSTANT} bytes");
            return Err(Error::new(ErrorKind::SyntaxError, told));
        }
    }
    Ok(())
}

/// Rewrites a program so that it charges the budget.
fn charged(program: &Instructions<'static>) -> Instructions<'static> {
    let mut out = Instructions::new(program.name(), program.source());
    let mut places = Vec::new();
    for at in 0.. {
        let Some(instruction) = program.get(at) else {
            break;
        };
        let line = program.get_line(at);
        let mut add = |instruction| match line.and_then(|line| u16::try_from(line).ok()) {
            Some(line) => out.add_with_line(instruction, line),
            None => out.add(instruction),
        };
        let first = match instruction {
            Instruction::EmitRaw(text) => {
                let first = add(Instruction::LoadConst(Value::from_safe_string(
                    (*text).to_owned(),
                )));
                add(Instruction::Emit);
                first
            }
            Instruction::BuildList(_)
            | Instruction::BuildTuple(_)
            | Instruction::BuildMap(_)
            | Instruction::Slice => {
                let first = add(instruction.clone());
                add(Instruction::CallFunction(CHECK, Some(1)));
                first
            }
            Instruction::SetAttr(_) => {
                // The value is below the namespace on the stack.
                let first = add(Instruction::Swap);
                add(Instruction::CallFunction(HELD, Some(1)));
                add(Instruction::Swap);
                add(instruction.clone());
                first
            }
            other => match operator(other) {
                Some(name) => add(Instruction::CallFunction(name, Some(2))),
                None => add(other.clone()),
            },
        };
        places.push(first);
    }
    // The target of jumps to the end.
    let end = (0..).find(|at| out.get(*at).is_none()).unwrap_or(0);
    places.push(end);
    for at in 0..end {
        if let Some(instruction) = out.get_mut(at) {
            moved(instruction, &places);
        }
    }
    out
}

/// Updates the target of a jump.
fn moved(instruction: &mut Instruction<'_>, places: &[u32]) {
    let aim = match instruction {
        Instruction::Iterate(aim)
        | Instruction::Jump(aim)
        | Instruction::JumpIfFalse(aim)
        | Instruction::JumpIfFalseOrPop(aim)
        | Instruction::JumpIfTrueOrPop(aim)
        | Instruction::BuildMacro(_, aim, _) => aim,
        _ => return,
    };
    if let Some(place) = places.get(*aim as usize) {
        *aim = *place;
    }
}
