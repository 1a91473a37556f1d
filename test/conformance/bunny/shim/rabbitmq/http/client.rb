# What the specs call of the gem of this name.
require "json"
require "net/http"
require "erb"

module RabbitMQ
  module HTTP
    class Item < Hash
      def method_missing(name, *) = fetch(name.to_s)
      def respond_to_missing?(name, _ = false) = key?(name.to_s)
    end

    class Client
      def initialize(url) = @url = URI(url)
      def list_connections = get("connections")
      def list_channels = get("channels")
      def list_queues(vhost = nil) = get(vhost ? "queues/#{escape(vhost)}" : "queues")
      def list_exchanges(vhost = nil) = get(vhost ? "exchanges/#{escape(vhost)}" : "exchanges")
      def close_connection(name) = ask(Net::HTTP::Delete, "connections/#{escape(name)}")

      private

      def escape(text) = ERB::Util.url_encode(text)
      def get(path) = JSON.parse(ask(Net::HTTP::Get, path).body, object_class: Item)

      def ask(method, path)
        request = method.new("/api/#{path}")
        request.basic_auth("guest", "guest")
        answer = Net::HTTP.start(@url.host, @url.port) { |http| http.request(request) }
        raise "#{path}: #{answer.code} #{answer.body}" unless answer.is_a?(Net::HTTPSuccess)
        answer
      end
    end
  end
end
