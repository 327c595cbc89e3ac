#include "tools/common/arguments.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace headlane::tools {

struct Arguments::Impl {
  explicit Impl(const std::string& description, const std::string& program) : app(description, program) {}
  CLI::App app;
};

namespace {

// CLI11 itself would take -1 for 2^64 - 1.
std::string CheckSeed(const std::string& text) {
  const bool is_number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  return is_number ? "" : "'" + text + "' is no whole number from 0 up";
}

template <typename T, typename Limit>
CLI::Option* AddNumber(CLI::App& app, const char* names, T& value, Limit min, Limit max, const std::string& help) {
  return app.add_option(names, value, help)->check(CLI::Range(min, max));
}

}  // namespace

Arguments::Arguments(std::string program, const std::string& description)
    : program_(std::move(program)), impl_(std::make_unique<Impl>(description, program_)) {}

Arguments::~Arguments() = default;

void Arguments::Flag(const char* names, bool& value, const std::string& help) {
  impl_->app.add_flag(names, value, help);
}

void Arguments::Number(const char* names, int& value, int64_t min, int64_t max, const std::string& help) {
  AddNumber(impl_->app, names, value, min, max, help)->capture_default_str();
}

void Arguments::Number(const char* names, int64_t& value, int64_t min, int64_t max, const std::string& help) {
  AddNumber(impl_->app, names, value, min, max, help)->capture_default_str();
}

void Arguments::Number(const char* names, float& value, float min, float max, const std::string& help) {
  AddNumber(impl_->app, names, value, min, max, help)->capture_default_str();
}

void Arguments::Numbers(const char* names, std::vector<int>& values, int64_t min, int64_t max,
                        const std::string& help) {
  AddNumber(impl_->app, names, values, min, max, help)->delimiter(',')->capture_default_str();
}

void Arguments::Numbers(const char* names, std::vector<int64_t>& values, int64_t min, int64_t max,
                        const std::string& help) {
  AddNumber(impl_->app, names, values, min, max, help)->delimiter(',')->capture_default_str();
}

void Arguments::Seed(const char* names, uint64_t& value, const std::string& help) {
  impl_->app.add_option(names, value, help)->check(CheckSeed, "UINT")->capture_default_str();
}

void Arguments::Choice(const char* names, std::string& value, const std::vector<std::string>& choices,
                       const std::string& help) {
  impl_->app.add_option(names, value, help)->check(CLI::IsMember(choices))->capture_default_str();
}

void Arguments::Text(const char* names, std::string& value, const std::string& help) {
  impl_->app.add_option(names, value, help);
}

void Arguments::Text(const char* names, std::optional<std::string>& value, const std::string& help) {
  impl_->app.add_option(names, value, help);
}

void Arguments::RequiredText(const char* names, std::string& value, const std::string& help) {
  impl_->app.add_option(names, value, help)->required();
}

void Arguments::OneOf(const char* title, const std::vector<TextOption>& options) {
  auto* const group = impl_->app.add_option_group(title, "one of the two");
  for (const TextOption& option : options) group->add_option(option.names, option.value, option.help);
  group->require_option(1);
}

void Arguments::NotEmpty(const char* name) {
  impl_->app.get_option(name)->check(
      CLI::Validator([](std::string& value) { return std::string(value.empty() ? "must not be empty" : ""); }, ""));
}

void Arguments::Excludes(const char* name, const std::vector<const char*>& others) {
  auto* const option = impl_->app.get_option(name);
  for (const char* other : others) option->excludes(impl_->app.get_option(other));
}

bool Arguments::Parse(int argc, char** argv, const std::string& footer, std::string& error) {
  impl_->app.footer(footer);
  impl_->app.get_formatter()->column_width(34);
  try {
    impl_->app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help
    impl_->app.exit(wanted);
    return false;
  } catch (const CLI::ParseError& what) {
    error = what.what();
    return false;
  }
  return true;
}

}  // namespace headlane::tools
