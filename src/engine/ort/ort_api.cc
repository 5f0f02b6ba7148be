#include "engine/ort/ort_api.h"

namespace granule::engine {
namespace {

using AnyFunction = void (*)();

template <class Function>
void Read(const AnyFunction* entries, size_t index, Function& function) {
  function = reinterpret_cast<Function>(entries[index]);
}

}  // namespace

OrtCalls ReadOrtTable(const OrtApiTable* table) {
  const auto* entries = reinterpret_cast<const AnyFunction*>(table);
  OrtCalls c{};
  Read(entries, 1, c.get_error_code);
  Read(entries, 2, c.get_error_message);
  Read(entries, 4, c.create_env_with_logger);
  Read(entries, 7, c.create_session);
  Read(entries, 9, c.run);
  Read(entries, 10, c.create_session_options);
  Read(entries, 17, c.disable_mem_pattern);
  Read(entries, 23, c.set_optimization);
  Read(entries, 24, c.set_intra_op_threads);
  Read(entries, 25, c.set_inter_op_threads);
  Read(entries, 30, c.input_count);
  Read(entries, 31, c.output_count);
  Read(entries, 33, c.input_type);
  Read(entries, 34, c.output_type);
  Read(entries, 36, c.input_name);
  Read(entries, 37, c.output_name);
  Read(entries, 49, c.create_tensor_over);
  Read(entries, 51, c.tensor_data);
  Read(entries, 55, c.type_to_tensor);
  Read(entries, 60, c.element_type);
  Read(entries, 61, c.rank);
  Read(entries, 62, c.dims);
  Read(entries, 65, c.value_tensor_info);
  Read(entries, 69, c.create_cpu_memory_info);
  Read(entries, 76, c.allocator_free);
  Read(entries, 78, c.default_allocator);
  Read(entries, 92, c.release_env);
  Read(entries, 93, c.release_status);
  Read(entries, 94, c.release_memory_info);
  Read(entries, 95, c.release_session);
  Read(entries, 96, c.release_value);
  Read(entries, 98, c.release_type_info);
  Read(entries, 99, c.release_tensor_info);
  Read(entries, 100, c.release_session_options);
  Read(entries, 130, c.add_config_entry);
  return c;
}

}  // namespace granule::engine
