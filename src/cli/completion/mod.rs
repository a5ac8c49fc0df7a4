//! What a shell offers for the word at the cursor.
//!
//! The scripts in `completions/` call the command with [`VARIABLE`] set to the shell's name, and
//! with the words of its line. So they offer what is there at that moment: processes, traces,
//! values.

mod bash_words;
mod values;

use std::env;
use std::ffi::OsString;
use std::io;

use clap::Command;
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCompleter, PathCompleter};
use clap_complete::env::{CompleteEnv, Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};

use super::arguments::definition;
use bash_words::BashWords;

/// The variable that asks for completions.
const VARIABLE: &str = "TRACEPROF_COMPLETE";
/// The variable in which some shells say which word is completed.
const INDEX_VARIABLE: &str = "_CLAP_COMPLETE_INDEX";
/// The function of zsh's script is called by the file itself when zsh loads it for the first Tab.
const ZSH_FIRST_CALL: &str = "
if [ \"$funcstack[1]\" = \"_traceprof\" ]; then
    _clap_dynamic_completer_traceprof \"$@\"
fi
";

/// Prints completions if a shell asks for some. Returns whether one did.
pub(super) fn answer(words: &[OsString]) -> clap::error::Result<bool> {
    let shells: [&dyn EnvCompleter; 5] = [&BashWords, &Elvish, &Fish, &Powershell, &Zsh];
    CompleteEnv::with_factory(|| completing(words))
        .var(VARIABLE)
        .shells(Shells(&shells))
        .try_complete(words, env::current_dir().ok().as_deref())
}

/// The script of a shell.
pub(super) fn script(shell: Shell) -> io::Result<Vec<u8>> {
    let name = "traceprof";
    let mut script = Vec::new();
    let mut register = |shell: &dyn EnvCompleter| {
        shell.write_registration(VARIABLE, name, name, name, &mut script)
    };
    match shell {
        Shell::Bash => register(&BashWords)?,
        Shell::Elvish => register(&Elvish)?,
        Shell::Fish => register(&Fish)?,
        Shell::PowerShell => register(&Powershell)?,
        Shell::Zsh => register(&Zsh)?,
        _ => return Err(io::Error::other("no script for this shell")),
    }
    if shell == Shell::Zsh {
        script.extend_from_slice(ZSH_FIRST_CALL.as_bytes());
    }
    // The templates begin and end with empty lines.
    let text = String::from_utf8_lossy(&script);
    Ok(format!("{}\n", text.trim()).into_bytes())
}

/// The definition with what completes each value, for a shell's words: those after the first `--`.
fn completing(words: &[OsString]) -> Command {
    let words: Vec<&OsString> = words.iter().skip_while(|word| *word != "--").skip(1).collect();
    let index = env::var(INDEX_VARIABLE).ok().and_then(|index| index.parse().ok());
    let index = index.unwrap_or(words.len().saturating_sub(1)).min(words.len());
    let is_option = words.get(index).is_some_and(|word| word.to_string_lossy().starts_with('-'));
    let program = words[..index].iter().position(|word| *word == "--");
    definition().mut_subcommands(|command| {
        let action = command.get_name().to_owned();
        command.mut_args(|argument| {
            let id = argument.get_id().to_string();
            if id == "pids" && program.is_some() {
                // The generator does not know that `--` leads to the last positional argument.
                return argument.long("processes").hide(true);
            }
            // A line of options would hide processes and files.
            let is_hidden = argument.is_hide_set() || !argument.is_positional() && !is_option;
            let argument = argument.hide(is_hidden);
            match program {
                Some(program) if id == "command" && program + 1 < index => {
                    argument.add(ArgValueCompleter::new(PathCompleter::any()))
                }
                _ => values::completed(&action, argument),
            }
        })
    })
}
