#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "monitoring/http/secure/tls.h"

namespace millrace::monitoring {
namespace {

using ::testing::HasSubstr;

// Made by `openssl ca -selfsign -startdate ... -enddate ...`.
/// A certificate that ends at 2026-03-01 12:00:00.
const std::string kNear =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBGDCBvwIUAYeKSYJUyIsP2kectPa+G9nLvxIwCgYIKoZIzj0EAwIwDzENMAsG\n"
    "A1UEAwwEbmVhcjAeFw0yNjAxMDEwMDAwMDBaFw0yNjAzMDExMjAwMDBaMA8xDTAL\n"
    "BgNVBAMMBG5lYXIwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASBa5rNfAvFYwh+\n"
    "30LD1nJ55xYooEckT1SLJ4AQcxfbVcvsEA+KW6+h2iIuDeIKlOQfCLjyu53DGndU\n"
    "55/Zvu02MAoGCCqGSM49BAMCA0gAMEUCIQC/eS5PUwjhnyoPJ4lxrXK5dKGKr7hS\n"
    "a09oTpRdLeGSYwIgK5YTzHKK58FOEckMaxRLd/WXW0zPmFX+QziBDEyd6fs=\n"
    "-----END CERTIFICATE-----\n";
/// A certificate that ends at the last second of the year 9999.
const std::string kFar =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBGDCBvwIUfiTyzUv+WcbQ+EkM02uPB8n6yWwwCgYIKoZIzj0EAwIwDjEMMAoG\n"
    "A1UEAwwDZmFyMCAXDTI2MDEwMTAwMDAwMFoYDzk5OTkxMjMxMjM1OTU5WjAOMQww\n"
    "CgYDVQQDDANmYXIwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASBa5rNfAvFYwh+\n"
    "30LD1nJ55xYooEckT1SLJ4AQcxfbVcvsEA+KW6+h2iIuDeIKlOQfCLjyu53DGndU\n"
    "55/Zvu02MAoGCCqGSM49BAMCA0gAMEUCIQCdnD4gRgIgRJ4sdgNAdEvCjxx4cqap\n"
    "JV49q+6sWZGq/gIgI1adj1xtTaYGWSUfQ+ioKd4276/kUKBVPEX5KqQ7smU=\n"
    "-----END CERTIFICATE-----\n";
/// A certificate that ended at 1969-12-31 23:59:00.
const std::string kOld =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBFjCBvQIULvUE6hEtZOFrCTAwppCmlDazsiwwCgYIKoZIzj0EAwIwDjEMMAoG\n"
    "A1UEAwwDb2xkMB4XDTUwMDEwMTAwMDAwMFoXDTY5MTIzMTIzNTkwMFowDjEMMAoG\n"
    "A1UEAwwDb2xkMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEgWuazXwLxWMIft9C\n"
    "w9ZyeecWKKBHJE9UiyeAEHMX21XL7BAPiluvodoiLg3iCpTkHwi48rudwxp3VOef\n"
    "2b7tNjAKBggqhkjOPQQDAgNIADBFAiEAxAEPi4LCmlX8TVdvVmJsagycMRTKZ3Do\n"
    "XEtZ95LIHisCIBz8h5twtOzWVVTz9J0ulYh57U086+HqH/HO3lZQNISj\n"
    "-----END CERTIFICATE-----\n";
/// kNear with the month 13 at its end.
const std::string kNoTime =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBGDCBvwIUAYeKSYJUyIsP2kectPa+G9nLvxIwCgYIKoZIzj0EAwIwDzENMAsG\n"
    "A1UEAwwEbmVhcjAeFw0yNjAxMDEwMDAwMDBaFw0yNjEzMDExMjAwMDBaMA8xDTAL\n"
    "BgNVBAMMBG5lYXIwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASBa5rNfAvFYwh+\n"
    "30LD1nJ55xYooEckT1SLJ4AQcxfbVcvsEA+KW6+h2iIuDeIKlOQfCLjyu53DGndU\n"
    "55/Zvu02MAoGCCqGSM49BAMCA0gAMEUCIQC/eS5PUwjhnyoPJ4lxrXK5dKGKr7hS\n"
    "a09oTpRdLeGSYwIgK5YTzHKK58FOEckMaxRLd/WXW0zPmFX+QziBDEyd6fs=\n"
    "-----END CERTIFICATE-----\n";
constexpr int64_t kNearEnd = 1'772'366'400;
constexpr int64_t kFarEnd = 253'402'300'799;
constexpr int64_t kOldEnd = -60;

class CertificateEndTest : public ::testing::Test {
 public:
  CertificateEndTest() {
    std::string pattern = ::testing::TempDir() + "certificate_end.XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~CertificateEndTest() override { std::filesystem::remove_all(folder_); }
  CertificateEndTest(const CertificateEndTest&) = delete;
  CertificateEndTest& operator=(const CertificateEndTest&) = delete;

  std::string file(const std::string& text) const {
    const std::string path = folder_ + "/file.pem";
    std::ofstream(path, std::ios::trunc) << text;
    return path;
  }
  int64_t end(const std::string& text) const {
    const Result<int64_t> read = read_certificate_end(file(text));
    EXPECT_TRUE(read) << (read ? "" : read.error().message);
    return read.value_or(-1);
  }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

TEST_F(CertificateEndTest, TheEndIsThatOfTheFirstCertificateToEnd) {
  EXPECT_EQ(end(kNear), kNearEnd);
  EXPECT_EQ(end(kFar), kFarEnd);
  EXPECT_EQ(end(kOld), kOldEnd);
  EXPECT_EQ(end(kNear + kFar), kNearEnd);
  EXPECT_EQ(end(kFar + kNear), kNearEnd);
  EXPECT_EQ(end(kFar + kNear + kOld), kOldEnd);
  EXPECT_EQ(end("# the authority\n\n" + kFar + "some text\n" + kNear), kNearEnd);
}

TEST_F(CertificateEndTest, AFileWithoutAUsableCertificateIsAnError) {
  for (const std::string& text : {std::string(), std::string("no certificate\n"), kNear.substr(0, kNear.size() - 60)})
    EXPECT_FALSE(read_certificate_end(file(text))) << text;
  // A damaged one behind a good one, too: part of the file is not used.
  for (const std::string& text : {kNoTime, kNear + kNoTime, kNear + kFar.substr(0, kFar.size() - 60)}) {
    const Result<int64_t> read = read_certificate_end(file(text));
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(read.error().message, HasSubstr("damaged"));
  }
  EXPECT_FALSE(TlsContext::client(file(kNoTime)));
  EXPECT_FALSE(read_certificate_end(folder()));
  EXPECT_FALSE(read_certificate_end(folder() + "/absent"));
  const std::string open = file(kNear);
  ASSERT_EQ(::chmod(open.c_str(), 0666), 0);
  EXPECT_FALSE(read_certificate_end(open));
}

TEST_F(CertificateEndTest, AClientReportsTheEarliestEndOfItsTrustedCertificates) {
  const auto client = TlsContext::client(file(kFar + kNear));
  ASSERT_TRUE(client) << client.error().message;
  EXPECT_EQ((*client)->certificate_end(), kNearEnd);
}

}  // namespace
}  // namespace millrace::monitoring
