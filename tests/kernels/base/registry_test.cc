#include "kernels/base/registry.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>

namespace millrace {
namespace {

struct NumberedEntry {
  std::string_view name;
  uint8_t number;
};
std::string_view name_of(const NumberedEntry& entry) { return entry.name; }
uint8_t number_of(const NumberedEntry& entry) { return entry.number; }

struct NamedEntry {
  std::string_view name;
};
std::string_view name_of(const NamedEntry& entry) { return entry.name; }

TEST(Registry, Entries_AreFoundByNameAndNumberInTheOrderOfTheList) {
  const Registry registry = {NumberedEntry{"second", 2}, NumberedEntry{"first", 1}};
  EXPECT_EQ(registry.with_name("first")->number, 1);
  EXPECT_EQ(registry.with_number(uint8_t{2})->name, "second");
  EXPECT_EQ(registry.with_name("third"), nullptr);
  EXPECT_EQ(registry.with_number(uint8_t{3}), nullptr);
  EXPECT_EQ(listed_texts(registry.entries(), [](const NumberedEntry& entry) { return entry.name; }), "second, first");
}

TEST(RegistryDeathTest, NumberOrNameTwice_Aborts) {
  EXPECT_DEATH((Registry{NumberedEntry{"one", 1}, NumberedEntry{"two", 2}, NumberedEntry{"three", 1}}), "three one");
  EXPECT_DEATH((Registry{NumberedEntry{"one", 1}, NumberedEntry{"one", 2}}), "one one");
  EXPECT_DEATH((Registry{NamedEntry{"one"}, NamedEntry{"two"}, NamedEntry{"two"}}), "two two");
}

}  // namespace
}  // namespace millrace
