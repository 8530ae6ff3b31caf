#pragma once

namespace CLI {
class App;
}

namespace millrace::monitoring {

/// Adds --config FILE: a TOML file with flags of `app`, without their dashes, as keys. The command line wins over it.
/// Headings of the file's parts are for its readers. REQUIRES: called before any flag is added.
void add_config_flag(CLI::App& app);

}  // namespace millrace::monitoring
